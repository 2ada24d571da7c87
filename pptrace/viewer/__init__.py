"""Hands one trace file to a Perfetto UI in the browser, and nothing else to anybody."""
