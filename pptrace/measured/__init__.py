"""Analyses of measured steps: explanations, diffs with other steps, and fits of costs."""
