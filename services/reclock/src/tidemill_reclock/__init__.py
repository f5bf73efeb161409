"""The reclock service: writes each row of a source once, at the time its binding gives it."""
