"""What a job's slow operations, workers and stages cost: the what-if analysis of its replicas."""
