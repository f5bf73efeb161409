"""Late events: the reason that their dead letters give, and the events read back from dead
letters.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from tidemill.arrangement.column_types import shown_as_text
from tidemill.datalog.inputs import ColumnType
from tidemill.datalog.records import Record
from tidemill.time.typed import READ

_LATE_REASON = re.compile(r"late: time (-?\d+) ")


def late_reason(time: int, frontier: int) -> str:
    """The reason of an event that came behind the event frontier."""
    return f"late: time {time} is before the event frontier {frontier}"


def late_events(
    letters: pa.Table, predicate: str, columns: Sequence[tuple[str, ColumnType]]
) -> list[Record]:
    """The events among dead letters that were refused because they came late; null in columns
    gained since.
    """
    found = []
    for reason, raw in zip(letters["reason"].to_pylist(), letters["raw"].to_pylist(), strict=True):
        told = _LATE_REASON.match(reason)
        if told is not None:
            row = json.loads(raw)
            values = tuple(_value(row.get(name), kind) for name, kind in columns)
            found.append(Record(predicate, values, int(told[1])))
    return found


def raw_rows(rows: pa.Table) -> list[str]:
    """Rows as the text that their dead letters keep."""
    shown = shown_as_text(rows, *_SHOWN)
    return [json.dumps(row, ensure_ascii=False) for row in shown.to_pylist()]


def _value(written: Any, kind: ColumnType) -> Any:
    """The value of a column from the text that a dead letter keeps."""
    name = kind.partition("(")[0]
    if name not in _TYPED or not isinstance(written, str):
        return written
    return b64decode(written) if name == "bytes" else READ[name](written)


_TYPED = tuple(READ)
_SHOWN = tuple(kind for kind in _TYPED if kind != "json")  # which is text already
