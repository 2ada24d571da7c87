"""One module per format of file: what it holds, as recordings."""
