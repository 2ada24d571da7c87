"""Chrome JSON, in whatever dialect: events in columns."""
