"""Which of all divisions of a job over its GPUs is the best: a space, bounds on its points, their simulation."""
