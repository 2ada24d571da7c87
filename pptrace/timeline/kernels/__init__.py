"""Kernels over timelines: index the rows, attribute idle time, follow memory and causes."""
