"""Recorded mutants: each breaks one rule, and the test that names the rule must notice."""
