"""What a diff found, as a document, pictures, files, and an object to be read from Python."""
