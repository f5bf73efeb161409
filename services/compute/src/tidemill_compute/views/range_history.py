"""The history of a view range by range: what each range reads, and what it writes.

Nothing here knows Spark: a task calls it, and so can a process.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pyarrow as pa

from tidemill.arrangement.interval_updates import END_WORD
from tidemill.arrangement.updates import between, concatenate, one_array
from tidemill.catalog.record_rows import PredicateShape
from tidemill.catalog.schemas import STATE_SCHEMA
from tidemill.datalog.carried_lattices import matches_ends
from tidemill.datalog.columns.texts import Texts
from tidemill.datalog.dataflow import DataflowEngine, OutputChanges
from tidemill.datalog.logical.partial import PARTIAL, plan_in
from tidemill.datalog.logical.plan import GIVEN
from tidemill.datalog.placement import (
    Fragment,
    HeavyKey,
    Place,
    Placement,
    heavy_keys,
    placement_of,
)
from tidemill.datalog.placement.shares import shares_of, state_of
from tidemill.datalog.placement.sizes import RANGES_MAX, bytes_of
from tidemill.datalog.presence import ErrorMove
from tidemill.datalog.state import StateRow
from tidemill.shard.heavy_values import heavy_over
from tidemill_compute.views.bulk import History
from tidemill_compute.views.interval_rows import changes_of, updates_of, without_endless
from tidemill_compute.views.present_rows import present_rows
from tidemill_compute.views.range_wire import Dealt, dealt_table, table_in
from tidemill_compute.views.told_wire import Told, dealt_told, feed_told, intervals_of
from tidemill_compute.views.view_updates import moved_rows, update_table

BEFORE = "#before:"
"""Before the name of a read: what crossed below the window, as an earlier fragment hands it on."""
COPIED_MAX = 8 << 30
"""Bytes, all copies together, of inputs that are in all ranges."""


@dataclass(frozen=True, slots=True)
class RangeFound:
    """The answer of one range: updates by collection, errors, rows by predicate, what crosses.

    `had` are the rows of before, and `failing` the errors that held then. `turn` is the instant at
    which the range changes by itself.
    """

    updates: Mapping[str, pa.Table]
    errors: Sequence[ErrorMove]
    rows: Mapping[str, int]
    crossing: Sequence[Dealt]
    had: Mapping[str, int] = field(default_factory=dict)
    failing: Sequence[ErrorMove] = ()
    turn: int = END_WORD


def heavy_in(history: History, ranges: int) -> tuple[HeavyKey, ...]:
    """The keys of inputs that more rows have than a range has on average. Cost: O(parts)."""
    least, found = history.rows // ranges, list[HeavyKey]()
    for predicate, (collection, shape) in history.target.inputs.items():
        told = heavy_over(part.heavy for part in history.inputs[collection][1])
        found += heavy_keys(predicate, shape.key_columns, told, least)
    return tuple(found)


def placement_with(
    history: History, rows: Mapping[str, int], heavy: Sequence[HeavyKey]
) -> Placement:
    """The placement of a program, by about how many rows its inputs have.

    Matches of `heavy` keys are divided where rows can be divided by all columns for that.
    """
    program = history.target.program
    found = placement_of(program, rows=rows, heavy=heavy)
    if not heavy or RangeHistory(history, found, 1).keys_fit():
        return found
    return placement_of(program, rows=rows)


class RangeHistory:
    """A history, or a window of one, in `ranges` ranges of each fragment that can be divided."""

    def __init__(self, history: History, placement: Placement, ranges: int) -> None:
        self.history = history
        self.placement = placement
        self.ranges = ranges
        self._derived = frozenset(n for each in placement.fragments for n in each.derives)

    @classmethod
    def of(cls, history: History, ranges: int, copied_max: int = COPIED_MAX) -> RangeHistory:
        """The history in so many ranges, in one where its program cannot be divided.

        Rows of inputs in all ranges are at most about `copied_max` bytes together.
        """
        rows = history.input_rows
        placement = placement_with(history, rows, heavy_in(history, ranges))
        found = cls(history, placement, ranges)
        divided = placement.divided and not matches_ends(history.target.program)
        if not (divided and found.keys_fit() and found._copied(rows) <= copied_max):
            found.ranges = 1
        return found

    def ranges_max(self) -> int:
        """Into so many ranges the history may be divided, with copies of COPIED_MAX bytes."""
        most = self.ranges
        one = max(1, self._copied(self.history.input_rows) // most)
        while 1 < most < RANGES_MAX and 2 * most * one <= COPIED_MAX:
            most *= 2
        return most

    def _copied(self, rows: Mapping[str, int]) -> int:
        """About how many bytes of inputs are there only because they are in all ranges."""
        columns = self.history.target.program.columns
        names = [
            read.predicate.removeprefix(GIVEN)
            for fragment in self.placement.fragments
            for read in fragment.reads
            if read.place.everywhere
        ]
        return sum(
            self.ranges * bytes_of(rows[name], len(columns[name])) for name in names if name in rows
        )

    def keys_fit(self) -> bool:
        """Whether all rows of inputs can be divided by the columns of their keys."""
        for fragment in self.placement.fragments:
            for read in fragment.reads:
                known = self.input_of(read.predicate)
                if known is None:
                    continue
                if not all(map(known[1].divides, (*read.place.positions, *read.place.pieces))):
                    return False
        return True

    def ranges_of(self, fragment: Fragment) -> int:
        """The number of ranges of a fragment."""
        return self.ranges if fragment.divided else 1

    def collections_of(self, fragment: Fragment) -> list[str]:
        """The collections that a fragment reads, in their order."""
        known = [self.input_of(read.predicate) for read in fragment.reads]
        return list(dict.fromkeys(each[0] for each in known if each is not None))

    def input_of(self, predicate: str) -> tuple[str, PredicateShape] | None:
        """The collection and the shape of what a fragment reads; None for what is derived."""
        if predicate in self._derived:
            return None
        return self.history.target.inputs.get(predicate.removeprefix(GIVEN))

    def stored(self, predicate: str) -> tuple[str, PredicateShape] | None:
        """The same, also of what is derived; None for what is in no collection."""
        return self.input_of(predicate) or self.history.target.outputs.get(predicate)

    def deal(self, fragment: Fragment, collection: str, rows: pa.Table) -> Iterator[Dealt]:
        """Updates of a collection in the ranges of a fragment. Cost: O(rows · reads)."""
        for read in fragment.reads:
            known = self.input_of(read.predicate)
            if known is not None and known[0] == collection:
                count, column = self.ranges_of(fragment), partial(_key, rows, known[1])
                yield from dealt_table(fragment.number, read.name, read.place, count, rows, column)

    def evaluate(
        self, fragment: Fragment, number: int, rows: Mapping[str, Sequence[bytes]],
        before: Mapping[str, pa.Table] | None = None, state: Sequence[StateRow] = (), *,
        whole: bool = False,
    ) -> RangeFound:  # fmt: skip
        """The answer of one range of a fragment, by its `number`, to all that was dealt to it.

        `before` are the updates below `lower` of what it reads, by name. `state` are the rows of
        the state there. The beginning of a view has None `before`. With `whole` it hands on to
        later fragments what was there before, too. Raises: Exhausted, LimitPassed, Corrupt.
        """
        engine = self.engine_of(fragment, number)
        if before is None:
            self.feed(engine, fragment, rows, live=False)
            return self.found(fragment, engine)
        shares = shares_of(fragment, number, self.ranges_of(fragment))
        engine.restore(state_of(fragment, state), self.history.lower, shares)
        self.feed_before(engine, fragment, rows, before)
        crossed, failing = self._restart(engine, fragment, whole)
        had = {name: engine.rows(name) for name in fragment.placed}
        self.feed(engine, fragment, rows, live=True)
        found = self.found(fragment, engine)
        crossing = [*crossed, *found.crossing]
        return replace(found, crossing=crossing, had=had, failing=failing)

    def found_again(self, fragment: Fragment, engine: DataflowEngine, *, whole: bool) -> RangeFound:
        """The answer of a range that was given at once what was there before, and all changes."""
        crossed, failing = self._restart(engine, fragment, whole)
        found = self.found(fragment, engine)
        return replace(found, crossing=[*crossed, *found.crossing], failing=failing)

    def engine_of(self, fragment: Fragment, number: int) -> DataflowEngine:
        """The engine of one range of a fragment, which tells outputs and what crosses.

        One by rounds tells all that it derives, and so knows by how much that has grown.
        """
        target = self.history.target
        wanted = fragment.placed if fragment.returning else target.outputs
        outputs = [name for name in fragment.placed if name in wanted]
        return DataflowEngine(
            fragment.plan.checked, plan=plan_in(fragment.plan, number),
            strategy=target.strategy, texts=Texts(),
            limits=target.limits, allowance=target.allowance.apart(), keeps_state=True,
            told=dict.fromkeys([*outputs, *self.placement.crossing(fragment)]), whole=fragment.whole,
        )  # fmt: skip

    def feed(
        self, engine: DataflowEngine, fragment: Fragment, rows: Mapping[str, Sequence[bytes]], *,
        live: bool,
    ) -> None:  # fmt: skip
        """Give an engine what was dealt to its range; of a `live` view these are changes."""
        for read in fragment.reads:
            known, payloads = self.input_of(read.predicate), rows.get(read.name, ())
            if known is None:
                feed_told(engine, read.name, payloads, engine.texts)
            elif not live:
                self._feed(engine, read.name, known[1], payloads, engine.texts)
            elif payloads:
                changes = concatenate([*map(table_in, payloads)])
                _take(engine, read.name, known[1], changes, engine.texts)

    def feed_before(
        self, engine: DataflowEngine, fragment: Fragment, rows: Mapping[str, Sequence[bytes]],
        before: Mapping[str, pa.Table],
    ) -> None:  # fmt: skip
        """Give an engine the rows just before `lower`: of collections, and what crossed of them."""
        lower, texts = self.history.lower, engine.texts
        for read in fragment.reads:
            stored = self.stored(read.predicate)
            if crossed := rows.get(BEFORE + read.name):
                feed_told(engine, read.name, crossed, texts)
            elif stored is not None and read.name in before:
                present = present_rows(before[read.name])
                # The ends of derived facts are told when they come, those of inputs are known.
                endless = self.input_of(read.predicate) is None
                _take(engine, read.name, stored[1], present, texts, lower - 1, endless=endless)

    def found(self, fragment: Fragment, engine: DataflowEngine) -> RangeFound:
        """Go on to `upper`; the answer of a range whose engine has all that was dealt to it."""
        target = self.history.target
        told = engine.step(min(self.history.upper, END_WORD))
        errors, endless = list[ErrorMove](), matches_ends(target.program)
        updates = {}
        for name in fragment.placed:
            if name in told and name in target.outputs:
                collection, shape = target.outputs[name]
                finite, failed = without_endless(told[name]) if endless else (told[name], [])
                updates[collection] = updates_of(finite, shape, self.history.lower)
                errors += failed
        names = self.placement.crossing(fragment) - fragment.returning
        crossed = self.crossing(fragment, told, dict.fromkeys(names, ""))
        gone, come = engine.tell_state()
        moved = moved_rows(gone, come, self.history.upper - 1)
        updates[target.state] = update_table(moved, STATE_SCHEMA)
        counts = {name: engine.rows(name) for name in fragment.placed}
        had = {n: rows - _grown(told.get(n)) for n, rows in counts.items()}
        errors += engine.tell_errors()
        return RangeFound(updates, errors, counts, crossed, had, turn=engine.turn)

    def crossing(
        self, fragment: Fragment, told: Mapping[str, OutputChanges], names: Mapping[str, str]
    ) -> list[Dealt]:
        """Changes of some predicates for who reads them; their names get a word before them."""
        read_later = {read.predicate for each in self.placement.fragments for read in each.reads}
        crossed = {
            name: Told.of(each, whole=name in fragment.whole, parts=name.startswith(PARTIAL))
            for name, each in told.items()
            if name in names and name in read_later
        }
        return [
            each
            for later in self.placement.fragments
            for read in later.reads
            if read.predicate in crossed
            for each in dealt_told(
                later.number,
                names[read.predicate] + read.name,
                read.place,
                self.ranges_of(later),
                crossed[read.predicate],
            )
        ]

    def _restart(
        self, engine: DataflowEngine, fragment: Fragment, whole: bool
    ) -> tuple[list[Dealt], list[ErrorMove]]:
        """Go on to `lower`; what a `whole` window hands on from before, and errors that hold."""
        told = engine.step(self.history.lower)
        engine.tell_state()
        names = self.placement.crossing(fragment) - fragment.returning if whole else ()
        return self.crossing(fragment, told, dict.fromkeys(names, BEFORE)), engine.tell_errors()

    def require_rows(self, counts: Mapping[str, int]) -> None:
        """Raises: LimitPassed where predicates have too many rows in all ranges together."""
        for name, count in counts.items():
            self.history.target.limits.require_rows(name, count)

    def _feed(
        self, engine: DataflowEngine, name: str, shape: PredicateShape, payloads: Sequence[bytes],
        texts: Texts,
    ) -> None:  # fmt: skip
        schema, lower = engine.schema_of(name), self.history.lower
        if schema is None or not payloads:
            return
        shape = replace(shape, predicate=name.rpartition(":")[2])
        rows, begin = concatenate([*map(table_in, payloads)]), 0
        if lower:
            # Rows present at `lower` begin there, as a reader of that instant is told.
            begin = lower + 1
            present = present_rows(between(rows, 0, begin))
            engine.feed(name, changes_of(present, shape, schema, texts, lower))
        later = changes_of(between(rows, begin, self.history.upper), shape, schema, texts)
        if not shape.timed and not schema.numbered:
            later = intervals_of(np.delete(later, -2, axis=1))
        engine.feed(name, later)


def _grown(told: OutputChanges | None) -> int:
    return 0 if told is None else int(told.moves[:, -1].sum())


def _take(
    engine: DataflowEngine, name: str, shape: PredicateShape, rows: pa.Table, texts: Texts,
    at: int | None = None, *, endless: bool = False,
) -> None:  # fmt: skip
    schema = engine.schema_of(name)
    if schema is not None and rows.num_rows:
        shape = replace(shape, predicate=name.rpartition(":")[2])
        change = changes_of(rows, shape, schema, texts, at)
        if endless:
            change[:, -2] = END_WORD
        engine.feed(name, change)


def key_of(shape: PredicateShape, place: Place, rows: pa.Table) -> list[pa.Array]:
    """The columns of the key of some rows of a collection, in the order of a place."""
    return [_key(rows, shape, at) for at in place.positions]


def _key(rows: pa.Table, shape: PredicateShape, at: int) -> pa.Array:
    """One column of the key of an input's rows; facts without a time have a null there."""
    if at == 0 and not shape.timed:
        return pa.nulls(rows.num_rows)
    return one_array(rows.column(shape.arguments if at == 0 else at - 1))
