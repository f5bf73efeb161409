"""The sum of the changes that a dataflow has told, and ways to feed one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from random import Random  # noqa: TID251  seeded by tests
from typing import Any

from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.dataflow import DataflowEngine, OutputChanges
from tidemill.datalog.presence import Presence
from tidemill.datalog.records import Record, format_record
from tidemill.datalog.state import StateRow
from tidemill.testkit.drawing import Presences
from tidemill.testkit.tidelog import DERIVED, UPPER


class Held:
    """An engine that is fed and stepped, and what is there by all that it has told.

    Further arguments are those of `DataflowEngine`. With `keeps_state` it sums up the state too.
    Events may carry any lattice unless `carrying` says which.
    """

    def __init__(self, checked: CheckedProgram, **options: Any) -> None:
        events = [name for name, each in checked.inputs.items() if each.kind == "events"]
        options.setdefault("carrying", events)
        self.engine = DataflowEngine(checked, **options)
        self.state: set[StateRow] = set()
        self._held: dict[str, dict[str, Record]] = {name: {} for name in checked.derived}

    def feed(self, given: Mapping[str, Sequence[Presence]], diff: int = 1) -> None:
        """Add the presences of some inputs, or take them away."""
        for name, presences in given.items():
            self.engine.feed_presences(name, presences, diff)

    def update(self, name: str, record: Record, at: int, diff: int) -> None:
        """Add a record of an input from an instant on, or take it away."""
        self.engine.feed_presences(name, [Presence(record, at)], diff)

    def step(self, upper: int) -> int:
        """Go on to an instant; the number of changes told."""
        changes = 0
        for name, told in self.engine.step(upper).items():
            changes += self.add(name, told)
        if self.engine.keeps_state:
            gone, come = self.engine.tell_state()
            assert self.state.issuperset(gone)
            assert len({*gone}) == len(gone)
            self.state = self.state.difference(gone)
            assert self.state.isdisjoint(come)
            self.state = self.state.union(come)
        return changes

    def add(self, name: str, told: OutputChanges) -> int:
        """Add what is told of a predicate; the number of changes."""
        changes, held = 0, self._held.setdefault(name, {})
        for _, record, diff in told.records():
            changes += 1
            text = format_record(record)  # records with 1 and with true are equal
            if diff > 0:
                assert text not in held
                held[text] = record
            else:
                del held[text]
        return changes

    def records(self, name: str) -> list[Record]:
        """The records of a predicate just before the upper."""
        return list(self._held[name].values())

    def texts(self, name: str) -> set[str]:
        """The same as texts."""
        return set(self._held[name])

    def errors(self) -> set[str]:
        """The errors just before the upper."""
        at = int(self.engine.upper) - 1
        return {e.text for e in self.engine.errors() if e.start <= at < e.end}

    def now(self) -> dict[str, set[str]]:
        """The derived predicates of random programs, and the errors, just before the upper."""
        found = {name: self.texts(name) if name in self._held else set() for name in DERIVED}
        return {**found, "errors": self.errors()}


def without_lattices(given: Presences) -> Presences:
    """The same presences without lattices that ride beside them."""
    return {
        name: [replace(each, record=replace(each.record, parafacts=())) for each in presences]
        for name, presences in given.items()
    }


def lives(
    checked: CheckedProgram, given: Presences, deaths: Sequence[int], **options: Any
) -> Iterator[tuple[int, Held]]:
    """Each instant with an engine that stands there; at each death another one goes on.

    It has its inputs from just before the death on, and the rows of the state.
    """
    state, since = set[StateRow](), 0
    for death, until in pairwise([0, *deaths, UPPER]):
        held = Held(checked, keeps_state=True, **options)
        held.state = state
        held.engine.restore(sorted(state), death)
        for name, presences in given.items():
            left = [each for each in presences if each.end > since]
            held.feed({name: [replace(each, start=max(each.start, since)) for each in left]})
        for stop in range(death, until + 1):
            held.step(stop)
            yield stop, held
        state, since = held.state, until - 1


def delivered(held: Held, given: Presences, stops: Sequence[int], seed: int) -> Iterator[int]:
    """Each stop, and the end, when an engine is there. Presences come one by one.

    They come in any order, each at any stop before its start, or at the first one after it.
    """
    rng = Random(seed)
    waiting = [(rng.randint(0, int(p.start)), n, p) for n, found in given.items() for p in found]
    for stop in sorted({*stops, UPPER}):
        rng.shuffle(waiting)
        for _, name, presence in [each for each in waiting if each[0] < stop]:
            held.engine.feed_presences(name, [presence])
        waiting = [each for each in waiting if each[0] >= stop]
        held.step(stop)
        yield stop


def taken_back(held: Held, given: Presences, passing: Presences, at: int) -> Iterator[int]:
    """Each instant from `at` on when an engine is there, at which some of its facts are taken away.

    It holds then what `with_passing` says.
    """
    held.feed(given)
    held.feed(passing)
    if at:
        held.step(at)
        yield at
    for name, presences in passing.items():
        later = [replace(p, start=max(p.start, at)) for p in presences if p.end > at]
        held.engine.feed_presences(name, later, -1)
    for stop in range(at + 1, UPPER + 1):
        held.step(stop)
        yield stop


def with_passing(given: Presences, passing: Presences, at: int) -> Presences:
    """Presences, and others that end at an instant if not before."""
    ended = {
        name: [replace(p, end=min(p.end, at)) for p in presences if p.start < at]
        for name, presences in passing.items()
    }
    return {name: [*presences, *ended[name]] for name, presences in given.items()}
