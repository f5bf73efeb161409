"""Limits of commands that read the history of a server."""

CHANGES_MAX = 1_000_000
"""Changes of one input that are read, unless the command names another limit."""
