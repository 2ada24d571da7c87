"""Results of analyses as text, JSON, pages and pictures."""
