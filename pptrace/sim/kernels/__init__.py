"""Kernels of the simulation: lowering an issue order to tasks, and running them."""
