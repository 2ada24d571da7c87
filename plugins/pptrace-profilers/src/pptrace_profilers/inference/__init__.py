"""Forwards and backwards of recordings in which no annotation names an action."""
