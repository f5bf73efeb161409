"""The query service: answers only what is definite, and says since and upper with it."""
