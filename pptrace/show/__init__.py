"""Draw schedules: the idealised table in the terminal, as SVG and as PNG."""
