"""Traces: batches in layers, merged as readers allow, shared by named handles."""

from tidemill.arrangement.trace.batches import Merger, Record, TraceBatch
from tidemill.arrangement.trace.description import Description
from tidemill.arrangement.trace.imports import ImportedTrace
from tidemill.arrangement.trace.reading import read_at, updates_of
from tidemill.arrangement.trace.row_batches import RowBatch, RowMerger, history_of_key
from tidemill.arrangement.trace.sharing import Holder, SharedTrace, TraceHandle, TraceStatus
from tidemill.arrangement.trace.spine import Spine

__all__ = [
    "Description",
    "TraceBatch",
    "Merger",
    "Record",
    "RowBatch",
    "RowMerger",
    "history_of_key",
    "Spine",
    "read_at",
    "updates_of",
    "SharedTrace",
    "TraceHandle",
    "TraceStatus",
    "Holder",
    "ImportedTrace",
]
