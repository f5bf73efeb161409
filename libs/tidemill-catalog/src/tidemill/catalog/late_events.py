"""Late events: the reason that their dead letters give, and the events read back from dead
letters.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import pyarrow as pa

from tidemill.datalog.records import Record

_LATE_REASON = re.compile(r"late: time (-?\d+) ")


def late_reason(time: int, frontier: int) -> str:
    """The reason of an event that came behind the event frontier."""
    return f"late: time {time} is before the event frontier {frontier}"


def late_events(letters: pa.Table, predicate: str, columns: Sequence[str]) -> list[Record]:
    """The events among dead letters that were refused because they came late; null in columns
    gained since.
    """
    found = []
    for reason, raw in zip(letters["reason"].to_pylist(), letters["raw"].to_pylist(), strict=True):
        told = _LATE_REASON.match(reason)
        if told is not None:
            row = json.loads(raw)
            found.append(Record(predicate, tuple(row.get(name) for name in columns), int(told[1])))
    return found
