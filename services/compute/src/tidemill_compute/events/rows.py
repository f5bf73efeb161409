"""From rows of a source to events: their time, their expiry, and what is wrong with them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.time.instants import ms_since_epoch

PARTITION = "_partition"
OFFSET = "_offset"
HEARTBEAT = "_heartbeat"
POSITION = (PARTITION, OFFSET)
"""The FromTime of a row, kept beside its columns so that a dead letter can name it."""

NEVER = 2**63 - 1
"""The expiry of an event without end, inside this service; null in a collection."""

Times: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class EventColumns:
    """Columns of an event's time; `data` are the columns of its identity."""

    data: tuple[str, ...]
    time: str
    expires: str | None = None
    expires_after_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """Rows that cannot be events, with one reason each."""

    rows: pa.Table
    reasons: list[str]


@dataclass(frozen=True, slots=True)
class Events:
    """Rows with a good time: `rows` with columns `_partition` and `_offset`; no null anywhere in
    times.
    """

    rows: pa.Table
    times: Times
    expires: Times

    def __len__(self) -> int:
        return len(self.times)

    def where(self, kept: Flags) -> Events:
        """The events whose flag is set, in their order."""
        if bool(kept.all()):
            return self
        return Events(self.rows.filter(pa.array(kept)), self.times[kept], self.expires[kept])


def timed(rows: pa.Table, columns: EventColumns) -> tuple[Events, list[Refused]]:
    """Split `rows` into events with a usable time and rows that have none.

    A time is refused if it is null, negative or a number that is not whole; an expiry if it is not
    after the time. Text is read as ISO 8601, in UTC unless it says otherwise. Fractions of a
    millisecond are dropped, of text and of timestamps.
    """
    times, good = _milliseconds(rows.column(columns.time))
    expires = np.full(rows.num_rows, NEVER, dtype=np.int64)
    ends_good = np.ones(rows.num_rows, dtype=np.bool_)
    if columns.expires is not None:
        column = rows.column(columns.expires)
        ends, ends_good = _milliseconds(column)
        endless = np.asarray(column.is_null().to_numpy(), dtype=np.bool_)
        expires = np.where(endless, NEVER, ends)
        ends_good = ends_good | endless
    elif columns.expires_after_ms is not None:
        expires = times + columns.expires_after_ms
    refused = []
    problems = (
        (~good, f"the event time in column {columns.time} is not a time"),
        (good & (times < 0), f"the event time in column {columns.time} is negative"),
        (good & ~ends_good, f"the expiry in column {columns.expires} is not a time"),
        (
            good & ends_good & (times >= 0) & (expires <= times),
            "the event expires before it begins",
        ),
    )
    for wrong, reason in problems:
        if bool(wrong.any()):
            bad = rows.filter(pa.array(wrong))
            refused.append(Refused(bad, [reason] * bad.num_rows))
            good = good & ~wrong
    kept = rows if bool(good.all()) else rows.filter(pa.array(good))
    return Events(kept, times[good], expires[good]), refused


def _milliseconds(column: pa.ChunkedArray) -> tuple[Times, Flags]:
    """The column as milliseconds, and where it is a whole, known number of them."""
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return _parsed(column)
    known = np.asarray(column.is_valid().to_numpy(), dtype=np.bool_)
    if column.type == pa.timestamp("us", "UTC"):
        micros = pc.fill_null(column.cast(pa.int64()), 0).to_numpy()
        return np.asarray(micros, dtype=np.int64) // 1_000, known
    if pa.types.is_integer(column.type):
        return np.asarray(pc.fill_null(column, 0).to_numpy(), dtype=np.int64), known
    if pa.types.is_floating(column.type):
        values = np.asarray(pc.fill_null(column, np.nan).to_numpy(), dtype=np.float64)
        whole = np.isfinite(values) & (np.abs(values) < 2.0**62)
        whole &= np.equal(np.floor(np.where(whole, values, 0.5)), values)
        return np.where(whole, values, 0).astype(np.int64), whole
    return np.zeros(len(column), dtype=np.int64), np.zeros(len(column), dtype=np.bool_)


def _parsed(column: pa.ChunkedArray) -> tuple[Times, Flags]:
    """ISO 8601 text as milliseconds."""
    times = np.zeros(len(column), dtype=np.int64)
    good = np.zeros(len(column), dtype=np.bool_)
    for at, text in enumerate(column.to_pylist()):
        if text is None:
            continue
        try:
            times[at] = ms_since_epoch(datetime.fromisoformat(text))
        except ValueError:
            continue
        good[at] = True
    return times, good
