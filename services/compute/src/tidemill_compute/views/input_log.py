"""The log of an input: a trace of what was read of it, shared by the views that read it."""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterable, Sequence
from typing import Any, Protocol
from weakref import ref

import pyarrow as pa

from tidemill.arrangement.trace import SharedTrace, Spine, TableBatch, TraceHandle
from tidemill.arrangement.updates import DIFF, accumulate, between, concatenate, stamp
from tidemill.time import U64_TIME, Antichain, frontier, sole_time

ROWS_MAX = 1_000_000
"""Rows that a log keeps for views that begin or are behind; more are read again."""
_BATCHES_FEW = 4
_EFFORT = 1 << 12
"""Rows that one piece of idle merging introduces."""

NOBODY: Antichain[int] = Antichain(U64_TIME)


class InputReader(Protocol):
    """A view's place in an input: it has all changes below `upper`."""

    upper: int

    def extend(self, changes: pa.Table, upper: int) -> None:
        """Take the changes of [upper so far, `upper`)."""


class InputLog:
    """The rows that were read of an input, as far as a reader may still ask for them.

    A view that begins at an instant holds the logical frontier there, so that others which begin
    later find the contents. With its first changes it releases that. From then on it holds the
    physical frontier at its place: what all have passed is forgotten. For one event loop.
    """

    def __init__(self) -> None:
        self._trace: SharedTrace[int, TableBatch] | None = None
        self._handles: dict[ref[InputReader], TraceHandle[int, TableBatch]] = {}
        self._starts = 0
        """The changes from this instant on are known."""

    def __len__(self) -> int:
        return sum(len(batch) for batch in self._batches())

    @property
    def holders(self) -> int:
        """Number of readers for which rows are kept."""
        return len(self._handles)

    def begin(self, reader: InputReader, contents: pa.Table, at: int) -> None:
        """Keep the contents at an instant for a reader that begins, and for others after it.

        Changes that are kept already follow where they go on from there. Readers behind it read
        from the store once.
        """
        if contents.num_rows > ROWS_MAX:
            return
        before, handles, old = self._batches(), self._handles, self._trace
        rows = stamp(contents.drop_columns([DIFF]), at).drop_columns([DIFF])
        trace = self._make(at + 1, rows.append_column(DIFF, contents.column(DIFF)))
        self._handles = {}
        self.hold(reader, at)
        if old is None or not old.physical.less_equal(at + 1):
            return
        for batch in before:
            lower, upper = batch.description.lower, batch.description.upper
            if sole_time(upper) > at + 1:
                changes = between(batch.updates, at + 1, None)
                first = frontier(max(sole_time(lower), at + 1))
                trace.insert(TableBatch.of(first, upper, changes))
        for each, handle in handles.items():
            if _place(handle) > at and each() is not reader:
                self._handles[each] = trace.hold("view")
                self._handles[each].set_logical(handle.logical)
                self._handles[each].set_physical(handle.physical)

    def contents(self, at: int) -> pa.Table | None:
        """The rows at an instant, None where the log does not go back so far."""
        trace = self._trace
        if trace is None or not self._handles or not trace.logical.less_equal(at):
            return None
        if trace.upper.less_equal(at):
            return None
        return accumulate(concatenate([batch.updates for batch in self._batches()]), at)

    def hold(self, reader: InputReader, at: int) -> None:
        """Keep the contents from an instant on, and the changes after it, for a reader."""
        if self._trace is not None:
            handle = self._known(reader) or self._trace.hold("view")
            self._handles[ref(reader)] = handle
            handle.set_logical(frontier(at))
            handle.set_physical(frontier(at + 1))

    def following(self, reader: InputReader) -> tuple[int, list[tuple[int, pa.Table]]]:
        """The end of the log from the place of a reader on; changes, each up to an instant."""
        trace, place = self._trace, reader.upper
        if trace is None or trace.upper.empty or not trace.physical.less_equal(place):
            return place, []
        if not self._starts <= place <= sole_time(trace.upper):
            return place, []
        found = []
        for batch in self._batches():
            upper, updates = sole_time(batch.description.upper), batch.updates
            if upper > place:
                whole = place <= sole_time(batch.description.lower)
                found.append((upper, updates if whole else between(updates, place, None)))
        return max(place, sole_time(trace.upper)), found

    def append(self, lower: int, upper: int, changes: pa.Table) -> None:
        """Keep changes that go on from the log; others begin it again if no reader needs it."""
        trace = self._trace
        if trace is None or (not self._handles and trace.upper != frontier(lower)):
            trace = self._make(lower, changes.slice(0, 0))
        if trace.upper == frontier(lower):
            trace.insert(TableBatch.of(frontier(lower), frontier(upper), changes))

    def move(self, reader: InputReader, readers: Iterable[InputReader]) -> None:
        """A reader has come to its place: what lies before it is not kept for it any more.

        The changes after the places of `readers` are kept for these.
        """
        trace = self._trace
        if trace is None or trace.upper != frontier(reader.upper):
            return
        for other in sorted(readers, key=lambda each: each.upper):
            reached = not self._handles or trace.physical.less_equal(other.upper)
            if reached and self._starts <= other.upper and self._known(other) is None:
                self._handles[ref(other)] = trace.hold("view")
                self._handles[ref(other)].set_physical(frontier(other.upper))
                self._handles[ref(other)].set_logical(NOBODY)
        handle = self._known(reader) or trace.hold("view")
        self._handles[ref(reader)] = handle
        handle.set_logical(NOBODY)
        handle.set_physical(frontier(reader.upper))
        while len(self) > ROWS_MAX and len(self._handles) > 1:
            self._release(min(self._handles, key=lambda each: _place(self._handles[each])))

    def release_but(self, readers: Container[Any]) -> None:
        """Keep nothing for readers that are gone."""
        for each in list(self._handles):
            reader = each()
            if reader is None or reader not in readers:
                self._release(each)

    def forget(self) -> None:
        """Keep nothing: the only reader has all of it."""
        for each in list(self._handles):
            self._release(each)
        self._trace = None

    def _make(self, upper: int, updates: pa.Table) -> SharedTrace[int, TableBatch]:
        """A trace that begins with some updates, all of them below `upper`."""
        trace: SharedTrace[int, TableBatch] = SharedTrace(Spine(U64_TIME))
        trace.set_exertion(_exertion, self._activate)
        if upper:
            trace.insert(TableBatch.of(frontier(0), frontier(upper), updates))
        self._trace, self._starts = trace, upper
        return trace

    def _known(self, reader: InputReader) -> TraceHandle[int, TableBatch] | None:
        return self._handles.get(ref(reader))

    def _release(self, reader: ref[InputReader]) -> None:
        self._handles.pop(reader).drop()
        if not self._handles:
            self._trace = None

    def _batches(self) -> Sequence[TableBatch]:
        for handle in self._handles.values():
            return handle.history()
        return ()

    def _activate(self) -> None:
        """Merge on when the loop has nothing else to do."""
        if self._trace is not None:
            asyncio.get_running_loop().call_soon(self._trace.exert)


def _exertion(batches: Sequence[TableBatch]) -> int:
    return _EFFORT if len(batches) > _BATCHES_FEW else 0


def _place(handle: TraceHandle[int, TableBatch]) -> int:
    return sole_time(handle.physical)
