"""Event timelines: rows of a source become events on their own time."""
