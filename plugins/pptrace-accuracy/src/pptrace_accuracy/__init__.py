"""Errors of simulated steps against measured steps."""
