"""The work of a window, without Spark: what a task does with its ranges of a fragment."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import count
from pathlib import Path

import msgspec
import pyarrow as pa

from tidemill.arrangement.arrow_bytes import unpack_table
from tidemill.arrangement.updates import DIFF, between, concatenate
from tidemill.datalog.dataflow import DataflowEngine
from tidemill.datalog.limits import LimitPassed
from tidemill.datalog.placement import Fragment, HeavyKey, Placement
from tidemill.datalog.placement.places import Read
from tidemill.datalog.state import StateRow
from tidemill.errors import Corrupt, Exhausted
from tidemill.shard.encoding import pack_part, unpack_part
from tidemill.shard.part_store import PartGone, PartStore
from tidemill.shard.parts import Part
from tidemill.shard.ports import Blob
from tidemill.shard.state import Description
from tidemill_compute.views.bulk import History
from tidemill_compute.views.eras import Eras
from tidemill_compute.views.history_spec import unpack_history
from tidemill_compute.views.present_rows import present_rows
from tidemill_compute.views.range_history import (
    RangeFound,
    RangeHistory,
    heavy_in,
    placement_with,
)
from tidemill_compute.views.range_wire import LAST, Dealt
from tidemill_compute.views.windows.part_rows import HeldRows, PartRows
from tidemill_compute.views.windows.spec import Failure, Window, name_of, unpack_window
from tidemill_compute.views.windows.touching import SPOTS, Looks, touched_by

ERRORS, ROWS, FAILED = "#errors", "#rows", "#failed"
EXCHANGED, LOOKED = "#exchanged", "#looked"
"""In the place of a collection: what is put together where all tasks have ended."""


class WindowWork:
    """Evaluates ranges of a window. The same ranges give the same bytes under the same names."""

    def __init__(self, packed: bytes, blob: Blob, folder: Path | None) -> None:
        self.window = window = unpack_window(packed)
        self.name, self.blob = name_of(packed), blob
        self._pieces: Iterator[str] = iter(())
        self._store = PartStore(blob, lambda: next(self._pieces), now_ms=lambda: window.begun_ms)
        self._parts = PartRows(self._store, folder, _HELD)
        self._below: dict[str, list[Part]] = {}
        rows = tuple(sorted(window.rows.items()))
        history, placement = _placed(window.view, rows, _heavy_in(window))
        history = replace(history, lower=window.lower, upper=window.upper)
        self.divided = RangeHistory(history, placement, window.ranges)
        parts = [part for found in _input_parts(window).values() for part in found]
        self._eras = Eras(self.divided, parts, window.rows, window.cores)
        self._state: Sequence[StateRow] | None = None

    @property
    def fragments(self) -> Sequence[Fragment]:
        """The stages of the window, in their order."""
        return self.divided.placement.fragments

    @property
    def tasks(self) -> int:
        """The most tasks into which a fragment of a fresh view can be divided."""
        return max(map(self._eras.count, self.fragments))

    async def stage(
        self, number: int, group: int, groups: int, crossed: Sequence[Dealt]
    ) -> AsyncIterator[Dealt]:
        """The ranges of a fragment that leave `group` when they are divided by `groups`.

        `crossed` are rows that earlier fragments dealt out to these ranges. A failure that would
        come again is a row, too.
        """
        fragment = self.fragments[number]
        if exchanged := sum(len(each.payload) for each in crossed):
            yield Dealt(LAST, 0, EXCHANGED, msgspec.msgpack.encode(exchanged))
        mine = [*crossed, *self._changes(fragment)]
        held = by_range(each for each in mine if each.range % groups == group)
        ranges: Iterable[int] = sorted(held)
        if self.window.whole:
            ranges = range(group, self._eras.count(fragment), groups)
        try:
            for at in ranges:
                async for dealt in self._range(fragment, at, held.get(at, {})):
                    yield dealt
        except (LimitPassed, Exhausted, Corrupt, PartGone) as error:
            told = FAILURES[type(error)], str(error)
            yield Dealt(LAST, 0, FAILED, msgspec.msgpack.encode(told))

    def reaches(self, fragment: Fragment, *, dealt: bool) -> bool:
        """Whether a recursion has work: rows were `dealt` to it, it has changes, or all counts."""
        changed = not self.window.changes.keys().isdisjoint(self.divided.collections_of(fragment))
        return dealt or changed or self.window.whole

    async def again(
        self, fragment: Fragment, at: int, changes: Mapping[str, Sequence[bytes]]
    ) -> DataflowEngine:
        """The engine of a range of a recursion, which a live window evaluates anew.

        It has been given what is there before the window, and the changes of the window.
        """
        engine = self.divided.engine_of(fragment, at)
        if not self.window.fresh:
            before = await self._before(fragment, at, changes)
            self.divided.feed_before(engine, fragment, {}, before)
            self.divided.feed(engine, fragment, changes, live=True)
        return engine

    def changes(self, fragment: Fragment) -> dict[int, dict[str, list[bytes]]]:
        """The changes of inputs in the window by range and by name of the read."""
        return by_range(self._changes(fragment))

    def _changes(self, fragment: Fragment) -> Iterator[Dealt]:
        for collection in self.divided.collections_of(fragment):
            changes = self.window.changes.get(collection)
            if changes is not None:
                yield from self.divided.deal(fragment, collection, unpack_table(changes))

    def inputs_of(self, fragment: Fragment) -> list[tuple[str, int]]:
        """The parts that a fragment of a fresh view reads: the collection, and the place there."""
        if not self.window.fresh:
            return []
        names = self.divided.collections_of(fragment)
        return [(name, at) for name in names for at in range(len(self.window.parts[name]))]

    async def deal(self, number: int, at: int) -> AsyncIterator[Dealt]:
        """The updates of one of these parts, in the ranges of a fragment."""
        collection, at = self.inputs_of(self.fragments[number])[at]
        description = self.divided.history.inputs[collection][0]
        part = unpack_part(self.window.parts[collection][at])
        rows = between(await self._parts.whole(part, description), 0, self.window.upper)
        for each in self.divided.deal(self.fragments[number], collection, rows):
            for dealt in self._eras.spread(each):
                yield dealt

    async def _range(
        self, fragment: Fragment, at: int, given: Mapping[str, Sequence[bytes]]
    ) -> AsyncIterator[Dealt]:
        before = None if self.window.fresh else await self._before(fragment, at, given)
        state = () if self.window.fresh else await self._state_before()
        found = self._eras.evaluate(fragment, at, given) or self.divided.evaluate(
            fragment, at, given, before, state, whole=self.window.whole
        )
        async for dealt in self.write_found(fragment, at, found):
            yield dealt
        looked = self._looked(fragment, before or {})
        yield Dealt(LAST, 0, LOOKED, msgspec.msgpack.encode(looked))

    async def write_found(
        self, fragment: Fragment, at: int, found: RangeFound
    ) -> AsyncIterator[Dealt]:
        """Write the parts of one range's answer; rows with them, with what crosses, and numbers."""
        for each in found.crossing:
            for dealt in self._eras.spread(each):
                yield dealt
        for collection, updates in found.updates.items():
            for part in await self.write(collection, updates, f"{fragment.number}-{at}"):
                yield Dealt(LAST, 0, collection, part)
        failed = list(found.failing), list(found.errors)
        yield Dealt(LAST, 0, ERRORS, msgspec.msgpack.encode(failed))
        told = self._grown(found), found.turn
        yield Dealt(LAST, 0, ROWS, msgspec.msgpack.encode(told))

    @staticmethod
    def _looked(fragment: Fragment, before: Mapping[str, pa.Table]) -> int:
        """The rows that more ranges would share: those that are in all ranges never count."""
        everywhere = {read.name for read in fragment.reads if read.place.everywhere}
        return sum(table.num_rows for name, table in before.items() if name not in everywhere)

    def _grown(self, found: RangeFound) -> dict[str, int]:
        had = {} if self.window.whole else found.had
        return {name: rows - had.get(name, 0) for name, rows in found.rows.items()}

    async def write(self, collection: str, updates: pa.Table, place: str) -> list[bytes]:
        """The packed parts of some updates; `place` tells them from others of the window."""
        if not updates.num_rows:
            return []
        self._pieces = (f"{self.name}-{place}-{piece}" for piece in count())
        description = self.divided.history.written[collection]
        return [
            pack_part(part) for part in await self._store.write(collection, description, updates)
        ]

    async def _before(
        self, fragment: Fragment, at: int, given: Mapping[str, Sequence[bytes]]
    ) -> dict[str, pa.Table]:
        """The rows just before the window of the keys that count, by the name of the read."""
        ranges, whole = self.divided.ranges_of(fragment), self.window.whole
        anew = whole or bool(fragment.returning)
        looks = Looks(
            at * SPOTS // ranges, (at + 1) * SPOTS // ranges,
            None if anew else touched_by(self.divided, fragment, given),
        )  # fmt: skip
        return {
            read.name: await self._present(read, looks)
            for read in fragment.reads
            if read.place.everywhere or read.place.positions or at == 0
            if not (whole and self.divided.input_of(read.predicate) is None)
            if read.predicate not in fragment.returning
        }

    async def _state_before(self) -> Sequence[StateRow]:
        """The state just before the window, of all ranges; a window without one reads nothing."""
        if self._state is None:
            history = self.divided.history
            description = history.written[history.target.state]
            table = await self._updates_below(history.target.state, description)
            rows = present_rows(table).drop_columns([DIFF]).to_pylist()
            self._state = [(row["rule"], row["kind"], row["solution"]) for row in rows]
        return self._state

    async def _updates_below(self, collection: str, description: Description) -> pa.Table:
        """The updates of a collection below the window."""
        lower = self.divided.history.lower
        tables = [description.no_updates()]
        tables += [
            await self._parts.whole(part, description)
            for part in await self._parts_below(collection)
        ]
        return between(concatenate(tables), 0, lower)

    async def _parts_below(self, collection: str) -> Sequence[Part]:
        """The parts of a collection that have updates below the window. Raises: PartGone."""
        if collection not in self._below:
            parts = [*map(unpack_part, self.window.parts.get(collection, ()))]
            for key in self.window.lists.get(collection, ()):
                parts += await self._parts.parts_of(key)
            found = (part.before(self.divided.history.lower) for part in parts)
            self._below[collection] = [part for part in found if part is not None]
        return self._below[collection]

    async def _present(self, read: Read, looks: Looks) -> pa.Table:
        stored = self.divided.stored(read.predicate)
        assert stored is not None, "a window over some keys finds all of them in collections"
        (collection, shape), history = stored, self.divided.history
        description = history.written.get(collection) or history.inputs[collection][0]
        tables = [description.no_updates()]
        wanted = [*looks.of(read.place, shape)] if read.place.positions else []
        for part in await self._parts_below(collection):
            tables += [await self._parts.some(part, description, *each) for each in wanted]
            if not read.place.positions:
                tables.append(await self._parts.whole(part, description))
        return between(concatenate(tables), 0, history.lower)


def by_range(dealt: Iterable[Dealt]) -> dict[int, dict[str, list[bytes]]]:
    """Payloads by range, and by the name under which it reads them."""
    found: dict[int, dict[str, list[bytes]]] = {}
    for each in dealt:
        found.setdefault(each.range, {}).setdefault(each.name, []).append(each.payload)
    return found


FAILURES: Mapping[type[Exception], Failure] = {
    LimitPassed: "limit", Exhausted: "exhausted", Corrupt: "corrupt", PartGone: "gone",
}  # fmt: skip


_HELD = HeldRows()
"""Of all windows that a process takes part in: most of the parts of one are those of the last."""
_history = lru_cache(16)(unpack_history)


@lru_cache(16)
def _placed(
    view: bytes, rows: tuple[tuple[str, int], ...], heavy: tuple[HeavyKey, ...]
) -> tuple[History, Placement]:
    history = _history(view)
    return history, placement_with(history, dict(rows), heavy)


def _heavy_in(window: Window) -> tuple[HeavyKey, ...]:
    """The heavy keys of a window, of a fresh view by its parts."""
    if not window.fresh:
        return tuple(HeavyKey(*key) for key in window.heavy)
    if window.ranges == 1:
        return ()
    history, parts = _history(window.view), _input_parts(window)
    inputs = {name: (each, parts[name]) for name, (each, _) in history.inputs.items()}
    return heavy_in(replace(history, inputs=inputs), window.ranges)


def _input_parts(window: Window) -> dict[str, tuple[Part, ...]]:
    """The parts of the inputs of a fresh view; of no other one."""
    names = _history(window.view).inputs if window.fresh else ()
    return {name: tuple(map(unpack_part, window.parts[name])) for name in names}
