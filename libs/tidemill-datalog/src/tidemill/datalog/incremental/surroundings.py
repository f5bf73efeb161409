"""What every part of an incremental engine shares: the instant, the tables, what is to happen
later, what fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import Any, TypeAlias

from tidemill.datalog.allowance import Allowance
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.evaluation.compiled import Surroundings
from tidemill.datalog.evaluation.profile import Profile
from tidemill.datalog.failures import fact_text
from tidemill.datalog.functions import ScalarFunction
from tidemill.datalog.incremental.facts import FactTable
from tidemill.datalog.incremental.versions import Later
from tidemill.datalog.inputs import ColumnType
from tidemill.datalog.lattices import Lattice
from tidemill.datalog.presence import BEGINNING, Instant
from tidemill.datalog.records import Record
from tidemill.datalog.tables import TIME, Row

Update: TypeAlias = "tuple[str, Record | Later, int]"
"""Predicate, record, how much its multiplicity changes; or what comes next of an input that is
lent.
"""
TICK = "#tick"
"""The predicate under which the ticks of a clock that come now are matched."""
JOINED = "#joined"
"""The predicate of joins that several rules have in common, which derive nothing that has a name."""
DEMAND = "#clock"
"""The predicate of rules that say which clocks another rule needs."""
TICKS_MAX = 1 << 53
"""Instants below this are told from overflow without a check; far beyond every date."""


class Agenda:
    """What is to happen at later instants, soonest first; at one instant in the order of the
    entries.
    """

    def __init__(self) -> None:
        self._entries: dict[Instant, list[Callable[[], None]]] = {}
        self._updates: dict[Instant, list[Update]] = {}
        self._instants: list[Instant] = []

    def add(self, at: Instant, happen: Callable[[], None]) -> None:
        """Let something happen at an instant."""
        entries = self._entries.get(at)
        if entries is not None:
            entries.append(happen)
            return
        self._entries[at] = [happen]
        if at not in self._updates:
            heappush(self._instants, at)

    def update(self, at: Instant, update: Update) -> None:
        """Let an input change at an instant."""
        updates = self._updates.get(at)
        if updates is not None:
            updates.append(update)
            return
        self._updates[at] = [update]
        if at not in self._entries:
            heappush(self._instants, at)

    def updates(self) -> Iterator[Update]:
        """What is to change of inputs."""
        for updates in self._updates.values():
            yield from updates

    @property
    def soonest(self) -> Instant | None:
        """The next instant at which something happens, None for never."""
        return self._instants[0] if self._instants else None

    def happen_until(self, now: Instant, apply: Callable[[Update], None]) -> None:
        """Let everything happen that is due at or before `now`; updates of inputs are given to
        `apply`.
        """
        while self._instants and self._instants[0] <= now:
            at = heappop(self._instants)
            for update in self._updates.pop(at, ()):
                apply(update)
            for happen in self._entries.pop(at, ()):
                happen()


class Errors:
    """The error collection under changes: how many failures stand behind each text, and what is
    new.
    """

    def __init__(self) -> None:
        self._standing: dict[str, dict[int, int]] = {}
        self._before: dict[str, int | None] = {}

    def add(self, rule: int, text: str) -> None:
        """One more failure with this text."""
        self._note(text)
        rules = self._standing.setdefault(text, {})
        rules[rule] = rules.get(rule, 0) + 1

    def remove(self, rule: int, text: str) -> None:
        """One failure fewer."""
        self._note(text)
        rules = self._standing[text]
        rules[rule] -= 1
        if not rules[rule]:
            del rules[rule]
            if not rules:
                del self._standing[text]

    def _note(self, text: str) -> None:
        if text not in self._before:
            self._before[text] = self._rule(text)

    def _rule(self, text: str) -> int | None:
        rules = self._standing.get(text)
        return min(rules) if rules else None

    def take(self) -> list[tuple[str, int, int]]:
        """What has come or gone since the last call: (text, first rule, 1 or -1)."""
        found: list[tuple[str, int, int]] = []
        for text, before in self._before.items():
            now = self._rule(text)
            if before is None and now is not None:
                found.append((text, now, 1))
            elif before is not None and now is None:
                found.append((text, before, -1))
        self._before.clear()
        return found

    def standing(self) -> list[tuple[str, int]]:
        """Every error that holds now, with the first rule that has it, by text."""
        return [(text, min(rules)) for text, rules in sorted(self._standing.items())]


@dataclass(frozen=True, slots=True)
class Told:
    """What the facts of a rule are, of which some are read from a shared join."""

    predicates: tuple[str, ...]
    sources: tuple[tuple[int, int, int], ...]
    """For each atom of the rule as it is written: the row, and where in it its key begins and ends."""

    def rows(self, rows: Sequence[Row]) -> tuple[Row, ...]:
        """The rows of the facts, in the order of the text."""
        return tuple([(None,) * TIME + rows[at][start:stop] for at, start, stop in self.sources])


@dataclass(slots=True)
class Present:
    """The present instant of a program: its tables, its agenda, its errors."""

    checked: CheckedProgram
    functions: Mapping[str, ScalarFunction]
    lattices: Mapping[str, Lattice]
    tables: dict[str, FactTable]
    agenda: Agenda
    errors: Errors
    around: Surroundings
    now: Instant = BEGINNING
    horizon: Instant = BEGINNING
    timer: Callable[[], float] | None = None
    """Seconds on some clock; where there is one, units and joins note how long they run."""
    joined: dict[str, list[str]] = field(default_factory=dict)
    """For each predicate the shared joins that read it."""

    @classmethod
    def of(
        cls,
        checked: CheckedProgram,
        timer: Callable[[], float] | None = None,
        allowance: Allowance | None = None,
    ) -> Present:
        """The instant before everything, without facts."""
        columns: dict[str, tuple[tuple[str, ColumnType], ...]] = dict(checked.columns)
        columns[TICK] = (("", "int"), ("", "int"))
        columns[DEMAND] = (("", "any"), ("", "any"))
        columns[JOINED] = ()
        known = replace(checked, columns=columns)
        profile = None if timer is None else Profile(timer)
        vocabulary = checked.vocabulary
        functions, lattices = vocabulary.functions, vocabulary.lattices
        around = Surroundings(
            known, functions, lattices, BEGINNING, TICKS_MAX, True, profile,
            allowance or Allowance(),
        )  # fmt: skip
        return cls(checked, functions, lattices, {}, Agenda(), Errors(), around, timer=timer)

    def share(
        self, name: str, read: Sequence[str], columns: tuple[tuple[str, ColumnType], ...]
    ) -> None:
        """Let there be the solutions of a join of these predicates, under a name of their own."""
        for predicate in dict.fromkeys(read):
            self.joined.setdefault(predicate, []).append(name)
        known = self.around.checked
        self.around = replace(
            self.around, checked=replace(known, columns={**known.columns, name: columns})
        )

    def table(self, predicate: str) -> FactTable:
        """The facts of a predicate; made on first use."""
        table = self.tables.get(predicate)
        if table is None:
            kinds = [kind for _, kind in self.around.checked.columns.get(predicate, ())]
            table = self.tables[predicate] = FactTable(predicate, kinds)
        return table

    def match_text(
        self, reason: str, predicates: Sequence[str], rows: Sequence[Any], told: Told | None = None
    ) -> str:
        """The text of an error of a match: its facts in the order of the atoms, or as they are
        `told`.
        """
        if told is not None:
            predicates, rows = told.predicates, told.rows(rows)
        facts = [fact_text(name, row[4:]) for name, row in zip(predicates, rows, strict=True)]
        return f"{reason}: {' ^ '.join(facts)}"
