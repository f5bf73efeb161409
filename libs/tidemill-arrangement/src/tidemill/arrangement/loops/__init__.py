"""Recursive computations over collections of numbers, kept up to date by differences.

A computation is built from inputs, operators and loops, and then takes one epoch of changes at a
time. All of its histories are in this process and on columns of 64-bit words; where records are
wider, the caller gives them ids.
"""

from tidemill.arrangement.loops.computation import (
    Changes,
    Collection,
    Computation,
    Feedback,
    Input,
    Loop,
    Output,
)
from tidemill.arrangement.loops.counts import Rule

__all__ = [
    "Changes",
    "Collection",
    "Computation",
    "Feedback",
    "Input",
    "Loop",
    "Output",
    "Rule",
]
