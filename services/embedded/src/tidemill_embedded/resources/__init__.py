"""Resources as they are applied: their shapes, what is wrong with them, what an apply will do."""
