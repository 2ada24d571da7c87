"""Recordings of a pipeline's ranks become steps on one clock."""
