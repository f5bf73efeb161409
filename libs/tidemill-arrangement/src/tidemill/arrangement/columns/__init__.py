"""Arrangements of numbers in columns: batches, traces and the operators on them, at native speed.

Importing it imports numba: callers that may not need it import it where they do.
"""

from tidemill.arrangement.columns.arranging import ColumnArrangement, ColumnHandle, ColumnTrace
from tidemill.arrangement.columns.batchers import ColumnBatcher
from tidemill.arrangement.columns.batches import ColumnBatch, ColumnMerger
from tidemill.arrangement.columns.counting import ColumnCount
from tidemill.arrangement.columns.filtering import ColumnSemijoin
from tidemill.arrangement.columns.imports import ImportedColumns
from tidemill.arrangement.columns.joining import ColumnJoin, TraceJoin
from tidemill.arrangement.columns.matching import Joined
from tidemill.arrangement.columns.reducing import ColumnReduce, TraceReduce
from tidemill.arrangement.columns.storage import InMemory, Spill, Storage
from tidemill.arrangement.columns.values import ValueCodes
from tidemill.arrangement.columns.views import (
    EnteredTrace,
    FilteredTrace,
    FrozenTrace,
    ReadableTrace,
)

__all__ = [
    "ColumnBatch",
    "ColumnMerger",
    "ColumnBatcher",
    "ColumnArrangement",
    "ColumnTrace",
    "ColumnHandle",
    "ColumnCount",
    "ColumnReduce",
    "TraceReduce",
    "ColumnSemijoin",
    "ImportedColumns",
    "EnteredTrace",
    "FilteredTrace",
    "FrozenTrace",
    "ReadableTrace",
    "ValueCodes",
    "ColumnJoin",
    "TraceJoin",
    "Joined",
    "InMemory",
    "Spill",
    "Storage",
]
