"""What an apply will do, and what is wrong with what it was given."""
