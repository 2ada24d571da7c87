"""Timelines of steps, and their analyses."""
