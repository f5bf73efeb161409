"""Runners: each keeps one resource going, and says how it does."""
