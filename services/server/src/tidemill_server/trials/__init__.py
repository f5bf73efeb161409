"""Tests of rules: cases in YAML, run in several orders and cuts, without a server.

`cases` reads files, `staging` makes events of rows, `answers` evaluates views and actions,
`running` compares, `reports` writes.
"""

CHANGES_MAX = 1_000_000
"""Changes of one input of a server that are read, unless the command names another limit."""
