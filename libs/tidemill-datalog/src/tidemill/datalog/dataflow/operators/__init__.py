"""Operators of a dataflow, each written once: what a change becomes, and the state it needs."""
