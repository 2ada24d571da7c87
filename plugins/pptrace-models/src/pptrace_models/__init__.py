"""Roofline costs of a transformer, presets of models and presets of devices."""
