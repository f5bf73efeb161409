"""Conformance kits: what every implementation of a port must do, as functions that raise if it does
not.
"""
