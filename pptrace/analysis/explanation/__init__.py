"""Where the time of one measured step went, and what would shorten it."""
