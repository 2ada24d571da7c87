"""Costs of a job's slow operations, workers and stages."""
