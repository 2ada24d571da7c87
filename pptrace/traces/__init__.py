"""Writers and readers of trace files."""
