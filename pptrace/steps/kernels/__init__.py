"""Loops over the columns of tables, run interpreted or compiled."""
