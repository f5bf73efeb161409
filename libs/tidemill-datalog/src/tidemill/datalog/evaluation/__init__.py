"""Rules over windows of rows: joins compiled to loops, strata in order."""
