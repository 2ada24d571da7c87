"""Schedules that split the backward, and put its weight gradients where a rank would idle."""
