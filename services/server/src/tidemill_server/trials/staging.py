"""From the rows of a case to facts: decoding, event time, and what is refused on the way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random  # noqa: TID251  the type of what is handed in
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.arrangement.updates import DIFF, TIME
from tidemill.catalog.entry import CatalogEntry, columns_of
from tidemill.catalog.record_rows import record_of
from tidemill.catalog.store import Stored
from tidemill.datalog.dataflow.evaluating import presences_of
from tidemill.datalog.presence import END, Instant, Presence
from tidemill.datalog.records import Record
from tidemill.errors import UsageError
from tidemill.runtime.formats import Column, JsonFormat, RowDecoder
from tidemill.runtime.resources import SourceSpec
from tidemill_compute.events.buffer import EventBuffer
from tidemill_compute.events.fold import EventFold, EventPolicy
from tidemill_compute.events.progress import NOTHING_SEEN, Policy
from tidemill_compute.events.rows import HEARTBEAT, OFFSET, PARTITION, timed
from tidemill_compute.events.source_streams import stream_of
from tidemill_server.trials.cases import wrapped
from tidemill_server.trials.row_texts import row_text

LAST = 1 << 61
"""Instant of the heartbeat that ends the stream of a case; every event lies before it."""


@dataclass(frozen=True, slots=True)
class GivenRow:
    """One row of a case, with the stretch in which a row without event time is present."""

    row: Mapping[str, Any]
    start: Instant = 0
    end: Instant = END
    partition: int = 0

    @property
    def heartbeat(self) -> int | None:
        """The instant that it promises, if it is a heartbeat."""
        beat = self.row.get("heartbeat")
        return beat if len(self.row) == 1 and isinstance(beat, int) else None


@dataclass(frozen=True, slots=True)
class Staged:
    """Facts of one source or table, its refused rows, and those of them that are late events.

    `unreadable` are refused rows as text, with the reasons why they are no rows of the source.
    """

    presences: Sequence[Presence]
    refused: Sequence[Mapping[str, Any]] = ()
    late: Sequence[Record] = ()
    unreadable: Sequence[str] = ()


def given_rows(stored: Stored, rows: Iterable[Mapping[str, Any]]) -> list[GivenRow]:
    """Rows of a case as they are meant. Raises: UsageError."""
    columns = [column.name for column in columns_of(stored)]
    found = []
    for row in rows:
        if not wrapped(row, columns):
            found.append(GivenRow(row))
            continue
        start, end = row.get("from", 0), row.get("until", END)
        whole = type(start) is int and (type(end) is int or "until" not in row)
        if not (whole and 0 <= start < end):
            raise UsageError(
                f"a row is present from {start} until {end}: say from 0 on, where tables begin, "
                "and until a later instant",
                reason="case",
            )
        found.append(GivenRow(row["row"], start, end, row.get("partition", 0)))
    return found


def stage(stored: Stored, entry: CatalogEntry, given: Sequence[GivenRow]) -> Staged:
    """Facts that a source or table makes of its rows, when all of them are definite."""
    spec = stored.resource.spec
    if isinstance(spec, SourceSpec) and spec.event_time is not None:
        return _events(stored, entry, given)
    rows, letters = _decoded(stored, given)
    make = record_of(entry.shape)
    names = entry.shape.schema.names
    found = [
        Presence(make(tuple(row[name] for name in names)), one.start, one.end)
        for row in rows.to_pylist()
        for one in [given[row[OFFSET]]]
    ]
    refused = [given[at].row for at in letters]
    return Staged(found, refused, unreadable=_reasons(letters, given))


def reordered(stored: Stored, given: Sequence[GivenRow], random: Random) -> Sequence[GivenRow]:
    """Another order of arrival with the same answers; the same order where there may be none.

    Rows without event time have no order. An event may come `skew` after a later one and is not
    late. An order with a late row or a heartbeat has a meaning, and stays.
    """
    spec = stored.resource.spec
    if not isinstance(spec, SourceSpec) or spec.event_time is None:
        return random.sample(given, len(given))
    _, policy = stream_of(stored)
    rows, unreadable = _decoded(stored, given)
    events, untimed = timed(rows, policy.columns)
    frontier, skew = 0, policy.progress.skew_ms
    order = [at for at, one in enumerate(given) if one.heartbeat is None]
    if unreadable or untimed or len(order) < len(given):
        return given
    times = dict(zip(events.rows[OFFSET].to_pylist(), map(int, events.times), strict=True))
    for at in order:
        if times[at] < frontier:
            return given
        frontier = max(frontier, times[at] - skew)
    return [given[at] for at in sorted(order, key=lambda at: times[at] + random.randint(0, skew))]


def _decoded(stored: Stored, given: Sequence[GivenRow]) -> tuple[pa.Table, Mapping[int, str]]:
    """Typed rows with partition and offset, which is the place in the case; reasons by offset."""
    columns = [Column(c.name, c.type, c.nullable) for c in columns_of(stored)]
    decoder = RowDecoder(columns, JsonFormat())
    places = [at for at, one in enumerate(given) if one.heartbeat is None]
    written = [row_text(given[at].row).encode() for at in places]
    rows, letters = decoder.decode([given[at].partition for at in places], places, written)
    return rows, dict(
        zip(*(letters[name].to_pylist() for name in ("offset", "reason")), strict=True)
    )


def _reasons(letters: Mapping[int, str], given: Sequence[GivenRow]) -> list[str]:
    return [f"{dict(given[at].row)}: {reason}" for at, reason in letters.items()]


def _events(stored: Stored, entry: CatalogEntry, given: Sequence[GivenRow]) -> Staged:
    """Rows through the second reclocking, one arrival an instant, ended by heartbeats."""
    _, policy = stream_of(stored)
    # The wall clock of a case is the order of its rows: silence and the distance ahead have none.
    policy = EventPolicy(policy.columns, Policy(policy.progress.skew_ms), policy.corrections)
    schema = entry.shape.schema
    buffer = EventBuffer.empty(schema, corrections=policy.corrections)
    fold = EventFold(policy, buffer, NOTHING_SEEN)
    rows, unreadable = _decoded(stored, given)
    partitions = sorted({one.partition for one in given}) or [0]
    places = rows[OFFSET].to_numpy()
    arrivals = rows.append_column(TIME, pa.array(places + 1, pa.uint64()))
    arrivals = arrivals.append_column(HEARTBEAT, pa.nulls(len(rows), pa.int64()))
    beats = [
        (at + 1, at, one.partition, one.heartbeat)
        for at, one in enumerate(given)
        if one.heartbeat is not None
    ]
    beats += [(len(given) + 1, len(given) + n, each, LAST) for n, each in enumerate(partitions)]
    ended = pa.table(
        {
            TIME: pa.array([beat[0] for beat in beats], pa.uint64()),
            OFFSET: pa.array([beat[1] for beat in beats], pa.uint64()),
            PARTITION: pa.array([beat[2] for beat in beats], pa.int64()),
            HEARTBEAT: pa.array([beat[3] for beat in beats], pa.int64()),
        }
    )
    every = pa.concat_tables([arrivals, ended], promote_options="default")
    every = every.append_column(DIFF, pa.array(np.ones(len(every), dtype=np.int64)))
    fold.step(every, [(1, len(partitions))], len(given) + 2)
    _, letters = fold.take()
    updates = fold.buffer.release(LAST)
    make = record_of(entry.shape)
    columns = [updates[name].to_pylist() for name in (*schema.names, TIME, DIFF)]
    changes = sorted(
        ((row[-2], make(row[:-2]), row[-1]) for row in zip(*columns, strict=True)),
        key=lambda change: (change[0], change[2]),
    )
    late = entry.readable().late
    return Staged(
        presences_of(changes),
        [given[at].row for at in [*unreadable, *letters["offset"].to_pylist()] if at < len(given)],
        [] if late is None else late[1](letters),
        _reasons(unreadable, given),
    )


def renamed(presences: Iterable[Presence], predicate: str) -> list[Presence]:
    """Facts under the name that a program has for them."""
    return [replace(p, record=replace(p.record, predicate=predicate)) for p in presences]
