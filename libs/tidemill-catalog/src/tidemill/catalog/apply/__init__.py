"""The plan of an apply, and the refusals of documents that do not fit."""
