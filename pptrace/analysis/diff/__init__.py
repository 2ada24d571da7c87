"""Two steps side by side, action by action: simulated or measured, any two of them."""
