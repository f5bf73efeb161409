"""One process among others: roles, calls to the peers, what is read for others."""
