"""The demo: a year of flights from a log to exact answers, verified at the end."""
