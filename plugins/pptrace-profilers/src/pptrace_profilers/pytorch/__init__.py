"""Events in the terms of PyTorch's profiler become one process's recording."""
