"""Conformance kits: laws of every implementation of a port, as functions that raise on a breach."""
