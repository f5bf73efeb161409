"""Effects that an outbox asks for, in their order, made a few at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import overload

import pyarrow as pa
import pyarrow.compute as pc

from tidemill.arrangement.updates import DIFF, TIME
from tidemill_compute.actions.outbox import Firing

MADE_AT_ONCE = 1_000
"""Firings that are made together while one walks over all."""


class Due(Sequence[Firing]):
    """Firings as columns; each is an object only while somebody looks at it.

    `marks` has a row for each, in order: its key, and the instant behind which it is done.
    """

    def __init__(self, marks: pa.Table, made: Callable[[int, int], list[Firing]]) -> None:
        self.marks = marks
        self._made = made

    @classmethod
    def of(cls, firings: Sequence[tuple[int, Firing]]) -> Due:
        """Firings that are there already, each with its instant."""
        marks = {
            "key": pa.array([each.key for _, each in firings], pa.string()),
            TIME: pa.array([instant for instant, _ in firings], pa.uint64()),
        }
        return cls(pa.table(marks), lambda start, stop: [each for _, each in firings[start:stop]])

    @classmethod
    def in_outbox(cls, rows: pa.Table) -> Due:
        """The firings that updates of an outbox hold.

        They come by the instant at which they stand there, then by their own instant. Next is the
        key of the event, then the number of the effect under it.
        """
        found = rows.filter(pc.not_equal(rows["key"], ""))
        number = pc.replace_substring_regex(found["key"], r"^[^.]*\.?", "")
        numbers = pc.cast(pc.if_else(pc.equal(number, ""), "0", number), pa.int64())
        event = found["event"] if "event" in found.column_names else found["key"]
        order = pc.sort_indices(
            pa.table({"at": found[TIME], "instant": found["instant"], "of": event, "n": numbers}),
            sort_keys=[(name, "ascending") for name in ("at", "instant", "of", "n")],
        )
        found = found.take(order)
        firings = found.drop_columns([TIME, DIFF])

        def made(start: int, stop: int) -> list[Firing]:
            return [Firing(**row) for row in firings.slice(start, stop - start).to_pylist()]

        return cls(found.select(["key", TIME]), made)

    def instants(self) -> Iterator[tuple[int, int, int]]:
        """Each instant at which some are due, with the places of the first and behind the last."""
        runs = pc.run_end_encode(self.marks[TIME].combine_chunks())
        start = 0
        for instant, stop in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
            yield instant, start, stop
            start = stop

    def __len__(self) -> int:
        return int(self.marks.num_rows)

    @overload
    def __getitem__(self, at: int) -> Firing: ...
    @overload
    def __getitem__(self, at: slice) -> list[Firing]: ...
    def __getitem__(self, at: int | slice) -> Firing | list[Firing]:
        if isinstance(at, slice):
            start, stop, _ = at.indices(len(self))
            return self._made(start, max(start, stop))
        place = range(len(self))[at]
        return self._made(place, place + 1)[0]

    def __iter__(self) -> Iterator[Firing]:
        for start in range(0, len(self), MADE_AT_ONCE):
            yield from self[start : start + MADE_AT_ONCE]
