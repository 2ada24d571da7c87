"""Measured steps beside simulated ones: rows of a table become configurations, and errors become figures."""
