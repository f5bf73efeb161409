"""The compaction service: keeps collections small without changing what they say."""
