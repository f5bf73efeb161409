"""Interval updates: rows of words that are present from a start to an end, kept and combined.

Importing it imports numba.
"""

from tidemill.arrangement.interval_updates.arranged import Arrangement, Index
from tidemill.arrangement.interval_updates.joining import JoinShape, begin, join, project, subtract
from tidemill.arrangement.interval_updates.latching import Latch
from tidemill.arrangement.interval_updates.merging import Merged, NegativeRow
from tidemill.arrangement.interval_updates.rows import (
    BEGIN_WORD,
    END_WORD,
    Change,
    no_change,
)
from tidemill.arrangement.interval_updates.summing import SUM_WORDS, Sums

__all__ = [
    "BEGIN_WORD", "END_WORD", "Arrangement", "Change", "Index", "JoinShape", "Latch", "Merged",
    "NegativeRow", "SUM_WORDS", "Sums", "begin", "join", "no_change", "project", "subtract",
]  # fmt: skip
