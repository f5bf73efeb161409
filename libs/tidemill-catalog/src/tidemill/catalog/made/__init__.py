"""Collections and holds that each resource makes, by any process that applies or runs it."""
