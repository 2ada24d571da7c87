"""Modules that mark a pipeline's actions where PyTorch's profiler sees them, and the command that prints them."""
