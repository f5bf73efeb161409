"""One process among others: roles, claims on work, calls to the peers."""
