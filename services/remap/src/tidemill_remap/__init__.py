"""The remap service: mints, for each source, which of its offsets belong to which of our times."""
