"""Studies: many simulated steps set side by side."""
