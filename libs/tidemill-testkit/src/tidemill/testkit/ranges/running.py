"""A program evaluated range by range: rows are dealt out, what crosses is handed on and merged.

A step gives out the tasks of one fragment after the other, to whoever evaluates ranges, and goes on
with the answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from tidemill.arrangement.interval_updates import END_WORD
from tidemill.datalog.dataflow.schema import instant_word
from tidemill.datalog.lattices import Tally
from tidemill.datalog.limits import Limits
from tidemill.datalog.logical.partial import PARTIAL, flat
from tidemill.datalog.logical.plan import GIVEN
from tidemill.datalog.placement.places import Fragment, Placement
from tidemill.datalog.presence import ErrorMove, Instant
from tidemill.datalog.records import Record
from tidemill.datalog.state import StateRow, encode_fields
from tidemill.testkit.ranges.task import (
    Move,
    RangeAnswer,
    RangeContents,
    RangeSettings,
    RangeTask,
    Update,
)
from tidemill_compute.views.interval_rows import FailingTexts


class RangeFacts:
    """Updates of facts: those that are there at the end of an interval, and those to come."""

    def __init__(self) -> None:
        self._present: dict[tuple[str, int], tuple[Record, int]] = {}
        self._waiting: list[Update] = []

    def put(self, updates: Iterable[Update]) -> None:
        """Updates that begin at or after the end of the last interval."""
        self._waiting += updates

    def present(self) -> list[Update]:
        """The facts that are there, with their ends and how often; their starts say nothing."""
        return [(record, 0, end, diff) for (_, end), (record, diff) in self._present.items()]

    def take(self, upper: int) -> list[Update]:
        """The updates that begin below the end of an interval, which is taken in by that."""
        due = [update for update in self._waiting if update[1] < upper]
        self._waiting = [update for update in self._waiting if update[1] >= upper]
        for record, _, end, diff in due:
            key = fact_key(record), end
            known = self._present.get(key, (record, 0))[1]
            self._present[key] = record, known + diff
        self._present = {
            key: found for key, found in self._present.items() if found[1] and key[1] >= upper
        }
        return due


def fact_key(record: Record) -> str:
    """A text that tells facts apart as the language does: 1 and true are two."""
    return encode_fields((record.arguments, record.time, record.expires, record.parafacts))


Steps: TypeAlias = "Generator[Sequence[RangeTask], Sequence[RangeAnswer], Merged]"
"""Gives out the tasks of one fragment after the other, and takes what each range says."""


@dataclass(frozen=True, slots=True)
class Merged:
    """The changes of facts and errors in an interval, merged over all ranges, by instant."""

    moves: Mapping[str, Sequence[Move]]
    errors: Sequence[ErrorMove]


class Ranges:
    """Guarantees: after each step all facts and errors below its end are those of one process.

    Not for use by several threads at once.
    """

    def __init__(
        self, placement: Placement, ranges: int, told: Collection[str], settings: RangeSettings
    ) -> None:
        """Fragments are evaluated in `ranges` ranges; changes are told of the predicates `told`."""
        self.placement = placement
        self._ranges = ranges
        self._told = frozenset(told)
        self._settings = settings
        self._lower: int | None = None
        self._held = {
            (fragment.number, number): {read.name: RangeFacts() for read in fragment.reads}
            for fragment in placement.fragments
            for number in range(ranges if fragment.divided else 1)
        }
        self._state: dict[int, list[StateRow]] = {each.number: [] for each in placement.fragments}
        self._failing = FailingTexts()

    def told_of(self, fragment: Fragment) -> frozenset[str]:
        """The predicates of which a fragment tells: those that cross, and those asked for."""
        asked = self._told.intersection(fragment.placed)
        return asked | self.placement.crossing(fragment)

    def feed(self, predicate: str, updates: Iterable[Update]) -> None:
        """Updates of an input at or after the end of the last interval."""
        found = list(updates)
        for name in (predicate, GIVEN + predicate):
            self._deal(name, found)

    def _deal(self, predicate: str, updates: Sequence[Update]) -> None:
        for fragment in self.placement.fragments:
            count = self._ranges if fragment.divided else 1
            for read in fragment.reads:
                if read.predicate == predicate:
                    for update in updates:
                        for number in read.place.ranges_of(update[0], count):
                            self._held[fragment.number, number][read.name].put([update])

    def step(self, upper: int) -> Steps:
        """Go on to an instant. Raises: LimitPassed, after which this is of no use."""
        moves: dict[str, list[Move]] = {}
        errors: list[ErrorMove] = []
        for fragment in self.placement.fragments:
            tasks = list(self._tasks(fragment, upper))
            if fragment.returning:
                found = yield from self._rounds(fragment, tasks)
            else:
                found = yield tasks
            self._limit(fragment, found)
            self._keep(fragment.number, found)
            for answer in found:
                errors += answer.errors
                for name, each in answer.moves.items():
                    moves.setdefault(name, []).extend(each)
            for name in self.placement.crossing(fragment) - fragment.returning:
                self._deal(name, _crossed(name, moves.get(name, ())))
        self._lower = upper
        asked = {name: sorted(self._shown(name, moves), key=_at) for name in self._told}
        return Merged(asked, self._failing.take(errors))

    def _rounds(
        self, fragment: Fragment, tasks: Sequence[RangeTask]
    ) -> Generator[Sequence[RangeTask], Sequence[RangeAnswer], Sequence[RangeAnswer]]:
        """The answers when what ranges derive is what it was; each round evaluates all anew.

        Raises: LimitPassed after more rounds than are allowed.
        """
        limits, rounds = self._settings.limits or Limits(), 0
        came: dict[int, dict[str, list[Update]]] = {task.number: {} for task in tasks}
        while True:
            found = yield [
                replace(task, changes={**task.changes, **came[task.number]}) for task in tasks
            ]
            self._limit(fragment, found)
            told = self._returned(fragment, found)
            if all(_alike(came[number], told[number]) for number in came):
                return [_from(answer, self._lower) for answer in found]
            came, rounds = told, rounds + 1
            limits.require_rounds(rounds)

    def _returned(
        self, fragment: Fragment, found: Sequence[RangeAnswer]
    ) -> dict[int, dict[str, list[Update]]]:
        """Derivations of a round, by the range and the name under which the next one reads them."""
        told: dict[int, dict[str, list[Update]]] = {at: {} for at in range(self._ranges)}
        for read in fragment.reads:
            for answer in found if read.predicate in fragment.returning else ():
                moves = answer.moves.get(read.predicate, ())
                for update in _crossed(read.predicate, moves):
                    for number in read.place.ranges_of(update[0], self._ranges):
                        told[number].setdefault(read.name, []).append(update)
        return told

    def _tasks(self, fragment: Fragment, upper: int) -> Iterator[RangeTask]:
        for (at, number), held in self._held.items():
            if at == fragment.number:
                present = {name: each.present() for name, each in held.items()}
                part = RangeContents(present, self._state[at])
                ranges = self._ranges if fragment.divided else 1
                changes = {name: each.take(upper) for name, each in held.items()}
                yield RangeTask(at, number, ranges, self._lower, upper, part, changes)

    def _keep(self, fragment: int, found: Sequence[RangeAnswer]) -> None:
        """Take in how the state of a fragment has changed, of which each row goes once."""
        state = Counter(self._state[fragment])
        for answer in found:
            state.update(answer.come)
            state.subtract(answer.gone)
        assert min(state.values(), default=0) >= 0, "a row of the state has gone twice"
        self._state[fragment] = list(state.elements())

    def _shown(self, name: str, moves: Mapping[str, Sequence[Move]]) -> Sequence[Move]:
        """The changes of a predicate by what its facts show."""
        found = moves.get(name, ())
        if not any(name in fragment.whole for fragment in self.placement.fragments):
            return found
        lattices = self.placement.plan.checked.vocabulary.lattices
        sums: dict[tuple[Instant, str], Move] = {}
        for at, record, diff in found:
            seen = [
                (lattice, lattices[lattice].observe(each)[0] if isinstance(each, Tally) else each)
                for lattice, each in record.parafacts
            ]
            shown = replace(record, parafacts=tuple(seen))
            key = at, fact_key(shown)
            before = sums[key][-1] if key in sums else 0
            sums[key] = at, shown, before + diff
        return [each for each in sums.values() if each[-1]]

    def _limit(self, fragment: Fragment, found: Sequence[RangeAnswer]) -> None:
        """Raises: LimitPassed where ranges have too many rows together."""
        limits = self._settings.limits or Limits()
        for name in fragment.placed:
            limits.require_rows(name, sum(answer.rows.get(name, 0) for answer in found))


def _crossed(name: str, moves: Sequence[Move]) -> list[Update]:
    """Changes as another fragment, or another round, reads them."""
    parts = name.startswith(PARTIAL)
    return [
        (flat(record) if parts else record, instant_word(at), END_WORD, diff)
        for at, record, diff in moves
    ]


def _alike(one: Mapping[str, Sequence[Update]], other: Mapping[str, Sequence[Update]]) -> bool:
    """Whether updates are the same, in any order."""
    return all(
        Counter(map(_update_key, one.get(name, ())))
        == Counter(map(_update_key, other.get(name, ())))
        for name in one.keys() | other.keys()
    )


def _update_key(update: Update) -> tuple[object, ...]:
    record, *others = update
    return fact_key(record), *others


def _from(answer: RangeAnswer, lower: int | None) -> RangeAnswer:
    """The changes of an answer from an instant on, where it was evaluated from one before."""
    if lower is None:
        return answer
    moves = {
        name: [move for move in found if instant_word(move[0]) >= lower]
        for name, found in answer.moves.items()
    }
    errors = [error for error in answer.errors if error[1] >= lower]
    return replace(answer, moves=moves, errors=errors)


def _at(move: Move) -> float:
    return move[0]
