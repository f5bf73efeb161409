"""Traces: batches in layers, merged as readers allow, shared by named handles.

Batches are the caller's: whatever has the methods of `TraceBatch`.
"""

from tidemill.arrangement.trace.batches import BatchT, Merger, TraceBatch
from tidemill.arrangement.trace.description import Description
from tidemill.arrangement.trace.imports import ImportedTrace
from tidemill.arrangement.trace.sharing import (
    Exertion,
    Holder,
    SharedTrace,
    TraceHandle,
    TraceStatus,
)
from tidemill.arrangement.trace.spine import Spine
from tidemill.arrangement.trace.tables import TableBatch

__all__ = [
    "BatchT",
    "Description",
    "Exertion",
    "Holder",
    "ImportedTrace",
    "Merger",
    "SharedTrace",
    "Spine",
    "TableBatch",
    "TraceBatch",
    "TraceHandle",
    "TraceStatus",
]
