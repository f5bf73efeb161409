"""Columns of values, and expressions over them."""
