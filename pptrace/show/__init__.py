"""Pictures of a schedule's idealised table: ranks by slots, in a terminal, as SVG and as PNG."""
