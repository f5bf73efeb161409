"""The rows of one input as words, until the tick that sees them: no row becomes an object."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tidemill.arrangement.interval_updates import Change, no_change
from tidemill.arrangement.updates import TIME
from tidemill.datalog.columns.texts import Texts
from tidemill.datalog.dataflow.schema import Schema
from tidemill.datalog.presence import END, Instant
from tidemill_compute.views.input_state import NO_TIMES, InputState
from tidemill_compute.views.interval_rows import changes_of

if TYPE_CHECKING:
    from tidemill.datalog.dataflow.ticker import DataflowTicker


class TickRows:
    """An input of which each tick of the one node sees all changes since the last one.

    Ticks are at multiples of a period, so that a change asks for a tick whatever it is. The engine
    adds up how often a row is there. Rows are in the order of their instants.
    """

    def __init__(self, living: InputState, schema: Schema | None, texts: Texts) -> None:
        """`schema` are the columns in which the engine reads it; None: no rule does."""
        self._living = living
        self._schema = schema
        self._texts = texts
        self._rows = no_change(0 if schema is None else schema.columns)
        self._fed = 0
        self._times = NO_TIMES
        """Instants of all changes of the step, also of those that say nothing."""
        self._arrived = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the rows that no tick has seen."""
        return int(self._rows[self._fed :].nbytes)

    def begin(self, lower: int, fresh: bool) -> None:
        """Wait for the first tick with the rows that are present where the view begins.

        They are a reason for a tick where none has run before.
        """
        present, at = self._living.take_present(), lower if fresh else lower - 1
        if self._schema is not None:
            shape = self._living.shape
            self._rows = changes_of(present, shape, self._schema, self._texts, at)
        if fresh and present.num_rows:
            self._times = np.array([at], np.uint64)

    def take(self, upper: int) -> None:
        """Queue the changes before `upper`. Raises: Corrupt. Cost: O(changes)."""
        due = self._living.take_updates(upper)
        if not due.num_rows:
            return
        times = np.asarray(due.column(TIME).to_numpy(), np.uint64)
        self._times, self._arrived = np.concatenate([self._times[self._arrived :], times]), 0
        if self._schema is not None:
            rows = changes_of(due, self._living.shape, self._schema, self._texts)
            self._rows, self._fed = np.concatenate([self._rows[self._fed :], rows]), 0

    @property
    def next_arrival(self) -> Instant:
        """The instant of the first change that has not arrived."""
        return END if self._arrived == len(self._times) else int(self._times[self._arrived])

    def arrive(self, until: Instant) -> None:
        """The changes up to an instant arrive, that of the tick by which they are seen."""
        at = np.uint64(until)
        self._arrived += int(self._times[self._arrived :].searchsorted(at, side="right"))

    def feed(self, ticker: DataflowTicker, at: int) -> None:
        """Give the changes up to the instant of a tick to the node that runs it."""
        upto = self._fed + int(self._rows[self._fed :, -3].searchsorted(at, side="right"))
        if upto > self._fed:
            seen: Change = self._rows[self._fed : upto]
            self._fed = upto
            ticker.take_rows(self._living.predicate, seen)
