"""Networks inside nodes and between them, and presets of whole clusters."""
