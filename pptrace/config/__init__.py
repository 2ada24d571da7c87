"""Configurations: YAML, ``--set`` and flags, merged, checked and resolved."""
