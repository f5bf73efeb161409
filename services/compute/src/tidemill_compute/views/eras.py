"""Eras of a history: the work of one range alone, divided by time among tasks.

A range has more to do than others where a key cannot be divided, and so has a fragment that is one
task. Each era begins with the rows that are there just before it, as a window does. So its changes
are those of the whole history in its interval.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pyarrow as pa

from tidemill.arrangement.interval_updates import END_WORD
from tidemill.arrangement.updates import TIME, between, concatenate, consolidate
from tidemill.datalog.carried_lattices import matches_ends
from tidemill.datalog.logical.plan import GIVEN
from tidemill.datalog.placement import Fragment
from tidemill.datalog.placement.hashing import range_of
from tidemill.datalog.placement.sizes import Sizes
from tidemill.shard.parts import Part
from tidemill_compute.views.range_history import BEFORE, RangeFound, RangeHistory
from tidemill_compute.views.range_wire import Dealt, table_in, table_payload
from tidemill_compute.views.told_wire import told_before, told_between

FINER = 2
"""An era has so many times fewer updates than each core would have, were all divided evenly."""
ROWS_MIN = 10_000
"""Updates for which there may be an era more: a task of nothing takes as long as for these."""


@dataclass(frozen=True, slots=True)
class Era:
    """One range of a fragment from `lower` to `upper`, evaluated under a number of its own."""

    number: int
    range: int
    lower: int
    upper: int
    first: bool
    last: bool


class Eras:
    """The ranges of the fragments of a fresh view, some of which are divided by time."""

    def __init__(
        self, divided: RangeHistory, parts: Sequence[Part], rows: Mapping[str, int], cores: int
    ) -> None:
        """Inputs have `parts`, and so many `rows` each; without `cores` nothing is divided.

        Cost: O(parts).
        """
        self._divided = divided
        self._by_range: dict[tuple[int, int], Sequence[Era]] = {}
        self._by_number: dict[tuple[int, int], Era] = {}
        if cores < 2 or not parts or matches_ends(divided.history.target.program):
            return
        for fragment in divided.placement.fragments:
            if not _fits(fragment):
                continue
            number = divided.ranges_of(fragment)
            for at, pieces in sorted(pieces_of(divided, fragment, rows, cores).items()):
                times = cuts_of(parts, divided.history.lower, divided.history.upper, pieces)
                self._divide(fragment.number, at, number, times)
                number += len(times) - 2

    def _divide(self, fragment: int, at: int, number: int, times: Sequence[int]) -> None:
        """Divide a range at some instants; later eras than the first have new numbers."""
        size = len(times) - 1
        numbers = [at, *range(number, number + size - 1)]
        if size < 2:
            return
        found = [
            Era(n, at, lower, upper, lower == times[0], upper == times[-1])
            for n, (lower, upper) in zip(numbers, pairwise(times), strict=True)
        ]
        self._by_range[fragment, at] = found
        self._by_number.update({(fragment, each.number): each for each in found})

    def count(self, fragment: Fragment) -> int:
        """The number of tasks into which a fragment can be divided."""
        more = [n for at, n in self._by_number if at == fragment.number]
        return max(self._divided.ranges_of(fragment), *(n + 1 for n in more), 0)

    def spread(self, dealt: Dealt) -> Iterator[Dealt]:
        """Rows for a range in those of its eras in which they are there."""
        eras = self._by_range.get((dealt.stage, dealt.range))
        if eras is None:
            yield dealt
        elif self._is_input(dealt):
            yield from _updates_in(dealt, eras)
        else:
            yield from _told_in(dealt, eras)

    def _is_input(self, dealt: Dealt) -> bool:
        reads = self._divided.placement.fragments[dealt.stage].reads
        (read,) = (each for each in reads if each.name == dealt.name)
        return self._divided.input_of(read.predicate) is not None

    def evaluate(
        self, fragment: Fragment, number: int, rows: Mapping[str, Sequence[bytes]]
    ) -> RangeFound | None:
        """The answer of an era, None for a range that has none; see `RangeHistory.evaluate`.

        `rows` of predicates are those by which they grow.
        """
        era = self._by_number.get((fragment.number, number))
        if era is None:
            return None
        history = replace(self._divided.history, lower=era.lower, upper=era.upper)
        divided = RangeHistory(history, self._divided.placement, self._divided.ranges)
        before = None
        if not era.first:
            inputs = {r.name for r in fragment.reads if divided.input_of(r.predicate) is not None}
            before = {
                name: concatenate([*map(table_in, rows[BEFORE + name])])
                for name in inputs
                if BEFORE + name in rows
            }
            taken = {BEFORE + name for name in before}
            rows = {name: each for name, each in rows.items() if name not in taken}
        found = divided.evaluate(fragment, era.range, rows, before)
        found = replace(found, turn=found.turn if era.last else END_WORD)
        if era.first:
            return found
        grown = {name: count - found.had[name] for name, count in found.rows.items()}
        return replace(found, rows=grown, had={}, failing=())


def _fits(fragment: Fragment) -> bool:
    """Whether all that a fragment knows at an instant is in the facts that it reads.

    A recursion would begin anew in each era.
    """
    remembers = any(rule.remembers for rule in fragment.plan.rules)
    recursive = any(each.recursive for each in fragment.plan.components)
    return not (remembers or recursive or fragment.returning)


def pieces_of(
    divided: RangeHistory, fragment: Fragment, rows: Mapping[str, int], cores: int
) -> dict[int, int]:
    """The number of eras of each range of a fragment that has far more than others.

    Pure. Cost: O(ranges).
    """
    ranges, sizes = divided.ranges_of(fragment), Sizes(divided.placement.plan, rows)
    total = sum(
        sizes.of(name) for name in {r.predicate.removeprefix(GIVEN) for r in fragment.reads}
    )
    found = Counter(dict.fromkeys(range(ranges), total // ranges))
    for key in fragment.undivided:
        found[range_of((key.value,), ranges)] += key.rows
    even = max(1, total // cores)
    return {
        at: pieces
        for at, mine in found.items()
        if 2 * mine > 3 * even
        and (pieces := min(-(-FINER * mine // even), FINER * cores, mine // ROWS_MIN)) > 1
    }


def cuts_of(parts: Sequence[Part], lower: int, upper: int, pieces: int) -> list[int]:
    """Instants from `lower` to `upper`, between two of which about as many updates are.

    Updates are thought to be even over the time of a part. There are fewer where many are at one
    instant. Cost: O(pieces · parts · log time).
    """
    total = sum(part.rows for part in parts)

    def below(instant: int) -> float:
        spans = [
            (part.rows, instant - part.time_min, part.time_max + 1 - part.time_min)
            for part in parts
        ]
        return sum(rows * min(1.0, max(0, past) / span) for rows, past, span in spans)

    inner = range(lower + 1, upper)
    found = {
        inner.start + bisect_left(inner, total * at / pieces, key=below) for at in range(1, pieces)
    }
    return [lower, *sorted(at for at in found if lower < at < upper), upper]


def _updates_in(dealt: Dealt, eras: Sequence[Era]) -> Iterator[Dealt]:
    """Updates of an input: those in an era, and apart from them the rows just before it."""
    table = table_in(dealt.payload)
    present = table.slice(0, 0)
    for each in eras:
        mine = between(table, 0 if each.first else each.lower, each.upper)
        for name, rows in ((BEFORE + dealt.name, present), (dealt.name, mine)):
            if rows.num_rows:
                yield Dealt(dealt.stage, each.number, name, table_payload(rows))
        if not each.last:
            rows, last = concatenate([present, mine]), np.uint64(each.upper - 1)
            at = pa.array(np.full(rows.num_rows, last))
            place = rows.schema.get_field_index(TIME)
            present = consolidate(rows.set_column(place, rows.schema.field(place), at))


def _told_in(dealt: Dealt, eras: Sequence[Era]) -> Iterator[Dealt]:
    """Changes that a fragment tells: those in an era, and apart from them what is there then."""
    for each in eras:
        if not each.first:
            for payload in told_before(dealt.payload, each.lower):
                yield Dealt(dealt.stage, each.number, BEFORE + dealt.name, payload)
        for payload in told_between(dealt.payload, 0 if each.first else each.lower, each.upper):
            yield Dealt(dealt.stage, each.number, dealt.name, payload)
