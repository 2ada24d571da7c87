"""A script that measures matrix products, whose table the cost model reads."""
