"""Runs: a configuration is prepared, simulated and reported."""
