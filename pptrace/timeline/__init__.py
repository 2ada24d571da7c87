"""Steps that happened: slices in columns and what they amount to."""
