"""What one process recorded, in no profiler's own terms."""
