"""A trace of columns that exists, in a new computation: its history at a frontier, then what comes."""

from __future__ import annotations

import numpy as np

from tidemill.arrangement.columns.batches import ColumnBatch, Times
from tidemill.arrangement.columns.views import ReadableTrace
from tidemill.arrangement.kernels import Columns, advance_by, beyond, consolidate, frontier_rows
from tidemill.errors import BeforeSince
from tidemill.time import Antichain


class ImportedColumns:
    """The updates of a trace at times advanced by `since`, without those beyond `until`.

    Accumulations at times beyond `since` and not beyond `until` are those of the trace. Each update
    comes once: the history first, then what was appended since the last call.

    Raises: BeforeSince if the handle no longer distinguishes all times beyond `since`.
    """

    def __init__(
        self, handle: ReadableTrace, name: str, since: Times, until: Times | None = None
    ) -> None:
        if not handle.logical.precedes(since):
            raise BeforeSince(
                f"{since} is not beyond the hold {handle.logical}",
                requested=since,
                since=handle.logical,
            )
        self._handle = handle.clone(name)
        self._lanes = ColumnBatch.lanes_of(handle.lattice)
        self._until: Times = Antichain(handle.lattice) if until is None else until
        self._since = since
        self._handle.set_logical(since)
        self._position: Times = Antichain.minimum(handle.lattice)
        self._ended = self._started = False

    @property
    def frontier(self) -> Times:
        """Up to where updates were given; empty once all times not beyond `until` were."""
        return Antichain(self._handle.lattice) if self._ended else self._position

    def step(self) -> Columns:
        """What was appended since the last step, the history at first, consolidated.

        Afterwards the handle holds no more than it needs to go on; at the end it is dropped.
        """
        if self._ended:
            return Columns.empty(self._lanes)
        handle = self._handle
        batches = handle.following(self._position) if self._started else handle.history()
        self._started = True
        self._position = handle.upper
        parts = [batch.updates() for batch in batches if len(batch)]
        if self._until.precedes(self._position):
            self.close()
        else:
            handle.set_physical(self._position)
            # What comes is beyond this; the history is not asked for again.
            handle.set_logical(self._position)
        if not parts:
            return Columns.empty(self._lanes)
        rows = Columns.concatenate(parts)
        times = advance_by(rows.times, frontier_rows(self._since, self._lanes))
        visible = ~beyond(times, frontier_rows(self._until, self._lanes))
        advanced = Columns(rows.keys, rows.vals, np.ascontiguousarray(times), rows.diffs)
        return consolidate(advanced if visible.all() else advanced.where(visible))

    def close(self) -> None:
        """End the import and drop its holds; again is fine."""
        self._ended = True
        self._handle.drop()
