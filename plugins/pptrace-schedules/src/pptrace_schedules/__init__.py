"""Pipeline schedules of papers and frameworks."""
