"""Loops over columns of numbers; no Python object for a row below this line.

Importing it imports numba: callers that may not need it import it where they do.
"""

from tidemill.arrangement.kernels.arrays import (
    BoolArray,
    DiffArray,
    I64Array,
    U64Array,
    compiled,
    inlined,
)
from tidemill.arrangement.kernels.columns import Columns
from tidemill.arrangement.kernels.consolidating import (
    consolidate,
    consolidate_columns,
    consolidate_packed,
)
from tidemill.arrangement.kernels.hashing import digest, hash_rows
from tidemill.arrangement.kernels.joining import RunJoin, first_at_least, join, match_keys
from tidemill.arrangement.kernels.merging import RunMerge, merge
from tidemill.arrangement.kernels.packing import Layout
from tidemill.arrangement.kernels.reducing import (
    COUNT,
    DISTINCT,
    GREATEST,
    LEAST,
    SUM,
    TOP,
    reduce_groups,
)
from tidemill.arrangement.kernels.times import advance_by, beyond, frontier_rows, split

__all__ = [
    "BoolArray", "DiffArray", "I64Array", "U64Array", "compiled", "inlined",
    "Columns", "Layout",
    "consolidate", "consolidate_columns", "consolidate_packed",
    "RunMerge", "merge",
    "advance_by", "beyond", "frontier_rows", "split",
    "digest", "hash_rows",
    "RunJoin", "first_at_least", "join", "match_keys",
    "COUNT", "DISTINCT", "GREATEST", "LEAST", "SUM", "TOP", "reduce_groups",
]  # fmt: skip
