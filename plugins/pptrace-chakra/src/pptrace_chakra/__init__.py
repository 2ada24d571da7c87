"""Chakra execution traces of pipeline-parallel training steps."""
