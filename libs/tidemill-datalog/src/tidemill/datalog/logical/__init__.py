"""Rules as engines see them: forms and their plan, scans of inputs, types and ranges of values."""
