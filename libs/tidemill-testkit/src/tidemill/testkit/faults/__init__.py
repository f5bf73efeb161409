"""Stores that fail as real ones do, by a seed; they count what they did."""
