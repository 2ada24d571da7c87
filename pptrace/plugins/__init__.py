"""The plugin interface from the inside: sorts of offers, their hooks, and the registry that finds plugins."""
