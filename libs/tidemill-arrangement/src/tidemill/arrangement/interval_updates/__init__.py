"""Interval updates: rows of words that are present from a start to an end, kept and combined.

Importing it loads loops.
"""

from tidemill.arrangement.interval_updates.arranged import Arrangement, Index
from tidemill.arrangement.interval_updates.float_sums import base_of, rounded
from tidemill.arrangement.interval_updates.group_stretches import merged_stretches
from tidemill.arrangement.interval_updates.groups import (
    COUNT,
    FLOAT_SUM,
    GREATEST,
    LEAST,
    LOWER_SUM,
    MEAN,
    SUM,
    UPPER_SUM,
    contribute,
    finish,
    replaced,
)
from tidemill.arrangement.interval_updates.joining import (
    AT_MOST,
    DIFFERENT,
    EQUAL,
    LESS,
    JoinShape,
    begin,
    join,
    project,
    subtract,
    tick,
)
from tidemill.arrangement.interval_updates.latching import Latch
from tidemill.arrangement.interval_updates.merging import Merged, NegativeRow, Passed
from tidemill.arrangement.interval_updates.moves import cut_moves, delayed, net_moves
from tidemill.arrangement.interval_updates.rows import (
    BEGIN_WORD,
    END_WORD,
    Change,
    no_change,
    rows_of,
)
from tidemill.arrangement.interval_updates.shared import Facts, RowsAsOf, SharedRows, Sharing
from tidemill.arrangement.interval_updates.sum_rows import SUM_WORDS
from tidemill.arrangement.interval_updates.summing import Sums
from tidemill.arrangement.interval_updates.witnesses import Witnesses, WitnessShape

__all__ = [
    "AT_MOST", "BEGIN_WORD", "COUNT", "DIFFERENT", "END_WORD", "EQUAL", "FLOAT_SUM", "GREATEST",
    "LEAST", "LESS", "LOWER_SUM", "MEAN", "SUM", "SUM_WORDS", "UPPER_SUM", "Arrangement",
    "Change", "Facts", "Index", "JoinShape", "Latch", "Merged", "NegativeRow", "Passed",
    "RowsAsOf", "SharedRows", "Sharing", "Sums", "WitnessShape", "Witnesses", "base_of", "begin",
    "contribute", "cut_moves", "delayed", "finish", "join", "merged_stretches", "net_moves", "no_change", "project",
    "replaced", "rounded", "rows_of", "subtract", "tick",
]  # fmt: skip
