"""Costs and network as measured steps say they are, written as a configuration."""
