"""A diff as one HTML file that needs nothing else: opens from disk, runs no script, prints."""
