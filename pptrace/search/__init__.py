"""Searches over many simulated steps: sweeps, comparisons, crossovers, plans and what-if."""
