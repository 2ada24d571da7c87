"""Network models."""
