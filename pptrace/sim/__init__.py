"""Lowering, kernels and the simulated step."""
