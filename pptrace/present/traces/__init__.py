"""Both steps of a diff as traces: one that holds both, or an archive of all files."""
