"""A step as it was performed, simulated or measured: its times taken apart, replayed, its chain and its parts."""
