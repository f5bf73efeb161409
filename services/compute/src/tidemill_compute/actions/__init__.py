"""Actions: definite events of a goal take effect in a sink, each exactly once."""
