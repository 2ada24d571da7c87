"""What an analysis found as text, JSON, pages, pictures and traces."""
