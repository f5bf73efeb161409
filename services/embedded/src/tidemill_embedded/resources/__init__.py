"""Resources as they are stored: their shapes, their versions, how their records are read."""
