"""Hooks, offers, and the registry of plugins."""
