"""Measured traces for pptrace: what profilers write, read into timelines."""
