"""Events that are known but not yet definite, and events that are present and will end.

The release for an interval of the event timeline depends only on the admitted events, and on the
frontier at which each arrived. A run that is cut differently, or is resumed after a crash, thus
releases the same updates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.arrangement.updates import first_of_each, ordered, update_schema
from tidemill_compute.events.rows import NEVER, Events, Times

START = "_start"
BEGUN = -1
"""In the place of the start of an event that was released before."""
Parts: TypeAlias = tuple[pa.Table, pa.Table]


@dataclass(slots=True)
class EventBuffer:
    """The part of an event collection that lies at or beyond its upper.

    `pending` holds events that will begin, with the instant at which they do; `living` holds
    events that have begun and will end. With `corrections` living also holds events without end,
    because a late copy of one of them must be recognised.
    """

    schema: pa.Schema
    corrections: bool
    pending: list[pa.Table]
    living: pa.Table

    @classmethod
    def empty(cls, schema: pa.Schema, *, corrections: bool) -> EventBuffer:
        """A buffer without events."""
        return cls(schema, corrections, [], schema.empty_table())

    @property
    def rows(self) -> int:
        """Number of events that are held."""
        return int(self.living.num_rows) + sum(int(rows.num_rows) for rows in self.pending)

    def restore(self, present: pa.Table) -> None:
        """Continue after `present`, the events that are present just below the upper."""
        self.living = self._with_an_end_to_come(present.select(self.schema.names))

    def admit(self, events: Events, frontier: int) -> None:
        """Take events that arrived while the stream's frontier stood at `frontier`."""
        if not len(events):
            return
        data = events.rows.select(self.schema.names[:-2])
        rows = data.append_column("time", pa.array(events.times))
        rows = rows.append_column("expires", pa.array(events.expires))
        starts = np.maximum(events.times, frontier)
        self.pending.append(rows.append_column(START, pa.array(starts)))

    def release(self, upper: int) -> pa.Table:
        """The updates of the event collection below `upper` that were not released before.

        Without late events they are in the order in which parts hold them, each once. Cost: O(n
        log n) in the rows due and held.
        """
        on_time, late = _parted(self._due(upper), lambda due: pc.equal(due[START], due["time"]))
        if not late.num_rows:
            return self._release_in_order(on_time, upper)
        begun = first_of_each(on_time, self.schema.names, START)
        self._live(begun)
        corrected = self._unknown(first_of_each(late, self.schema.names, START))
        self._live(corrected)
        begun = pa.concat_tables([begun, corrected])
        return pa.concat_tables([self._stamped(begun, begun[START], 1), self._end(upper)])

    def _release_in_order(self, on_time: pa.Table, upper: int) -> pa.Table:
        """The updates of events that begin on time, and of the ends of all: one sort of both."""
        names = self.schema.names
        held = pa.array(np.full(self.living.num_rows, BEGUN, np.int64))
        known = pa.concat_tables([self.living.append_column(START, held), on_time])
        rows, differs = ordered(known, names)
        starts = np.asarray(rows[START].to_numpy(), np.int64)
        fresh = starts != BEGUN
        copies = ~differs & fresh
        copies[1:] &= fresh[:-1]
        if bool(copies.any()):
            rows = rows.filter(pa.array(~copies))
            starts, fresh = starts[~copies], fresh[~copies]
        ends = np.asarray(rows["expires"].to_numpy(), np.int64)
        ended = ends < upper
        self.living = self._with_an_end_to_come(rows.select(names).filter(pa.array(~ended)))
        # An event that begins and ends below the upper has two updates, one behind the other.
        places = np.repeat(np.arange(len(starts)), fresh.astype(np.int64) + ended)
        ending = ~fresh[places]
        ending[1:] |= places[1:] == places[:-1]
        times = np.where(ending, ends[places], starts[places])
        found = rows.select(names).take(pa.array(places)).combine_chunks()
        return self._stamped(found, pa.chunked_array([pa.array(times)]), np.where(ending, -1, 1))

    def _live(self, begun: pa.Table) -> None:
        self.living = pa.concat_tables([self.living, begun.select(self.schema.names)])

    def _due(self, upper: int) -> pa.Table:
        """Take out of pending what begins below `upper` and lives at all."""
        columns = pa.schema([*self.schema, pa.field(START, pa.int64())])
        rows = pa.concat_tables([columns.empty_table(), *(t.cast(columns) for t in self.pending)])
        due, later = _parted(rows, lambda rows: pc.less(rows[START], upper))
        self.pending = [later]
        return _parted(due, lambda due: pc.greater(due["expires"], due[START]))[0]

    def _unknown(self, late: pa.Table) -> pa.Table:
        """The late events that are no copies of a living one."""
        suspects = self.living.filter(pc.is_in(self.living["time"], late["time"].combine_chunks()))
        known = set(_rows(suspects))
        kept = [row not in known for row in _rows(late.select(self.schema.names))]
        return late.filter(pa.array(kept, pa.bool_()))

    def _end(self, upper: int) -> pa.Table:
        """Take out of living what ends below `upper`, as updates."""
        ended, left = _parted(self.living, lambda living: pc.less(living["expires"], upper))
        self.living = self._with_an_end_to_come(left)
        return self._stamped(ended, ended["expires"], -1)

    def _with_an_end_to_come(self, rows: pa.Table) -> pa.Table:
        ends = pc.fill_null(rows["expires"], NEVER)
        rows = rows.set_column(rows.num_columns - 1, self.schema.field("expires"), ends)
        if self.corrections:
            return rows
        return _parted(rows, lambda rows: pc.less(rows["expires"], NEVER))[0]

    def _stamped(self, rows: pa.Table, times: pa.ChunkedArray, diff: int | Times) -> pa.Table:
        """`rows` as updates at their own `times`; an event without end has no expiry."""
        ends = rows["expires"]
        endless = pc.if_else(pc.equal(ends, NEVER), pa.scalar(None, pa.int64()), ends)
        columns = [*(rows[name] for name in self.schema.names[:-1]), endless]
        diffs = pa.array(np.broadcast_to(np.int64(diff), rows.num_rows))
        columns += [pc.cast(times, pa.uint64()), diffs]
        return pa.Table.from_arrays(columns, schema=update_schema(self.schema))


def _parted(rows: pa.Table, test: Callable[[pa.Table], pa.ChunkedArray]) -> Parts:
    """The rows for which a test is true, and the others; nothing is copied if all are alike."""
    flags = test(rows).to_numpy()
    count = np.count_nonzero(flags)
    if count in (0, len(flags)):
        nothing = rows.slice(0, 0)
        return (rows, nothing) if count else (nothing, rows)
    return rows.filter(pa.array(flags)), rows.filter(pa.array(~flags))


def _rows(table: pa.Table) -> list[tuple[object, ...]]:
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))
