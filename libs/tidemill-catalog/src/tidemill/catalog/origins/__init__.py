"""Places that a source reads: files, the log of this system, brokers."""
