"""The vocabulary: actions, placement, workload, requests."""
