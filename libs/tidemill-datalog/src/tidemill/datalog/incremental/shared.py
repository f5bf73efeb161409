"""Joins that several rules have in common, kept once: a unit of its own finds the solutions, the
rules read them.

A solution is kept as a row that holds the whole keys of its facts, side by side, so that from it
follows which facts they are: rules report errors by their own facts, and two solutions are never
one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.evaluation.sharing import CommonJoin, Judged, Use
from tidemill.datalog.incremental.matches import Matches, Target
from tidemill.datalog.incremental.surroundings import JOINED, Present, Told
from tidemill.datalog.incremental.unit import Reporter, Unit
from tidemill.datalog.inputs import ColumnType
from tidemill.datalog.lattices import Parafacts, merge_parafacts
from tidemill.datalog.limits import Limits
from tidemill.datalog.logical.forms import (
    AtomForm,
    HeadForm,
    RuleForm,
    Term,
    Wildcard,
)
from tidemill.datalog.presence import END, Instant
from tidemill.datalog.tables import EXPIRES, PARAFACTS, TIME, Row

_NO_LIMIT = 1 << 62


@dataclass(frozen=True, slots=True)
class SharedJoin:
    """A common join of a program, and the name under which its solutions are kept."""

    name: str
    judged: Judged

    @property
    def join(self) -> CommonJoin:
        """What is joined, and who reads it."""
        return self.judged.join

    def columns(self, checked: CheckedProgram) -> tuple[tuple[str, ColumnType], ...]:
        """The columns of its rows: of each fact the time, then the arguments."""
        found: list[tuple[str, ColumnType]] = []
        for atom in self.join.atoms:
            found.append((f"{atom.predicate}.time", "int"))
            for at, (name, kind) in enumerate(checked.columns[atom.predicate]):
                found.append((f"{atom.predicate}.{name or f'c{at}'}", kind))
        return tuple(found)

    def form(self) -> RuleForm:
        """The join as a rule without a head."""
        join = self.join
        return RuleForm(
            join.rules[0], HeadForm(JOINED, ()), join.atoms, (), join.conditions,
            len(join.conditions), join.types,
        )  # fmt: skip


def reading(form: RuleForm, use: Use, name: str) -> tuple[RuleForm, Told]:
    """A rule that reads the solutions of its common join, its own conditions unchanged."""
    terms: list[Term] = []
    sources: dict[int, tuple[int, int, int]] = {}
    for place in use.places:
        atom = form.atoms[place]
        time = next((mine[0] for lattice, mine in atom.lattices if lattice == "time"), Wildcard())
        start = TIME + 1 + len(terms)
        terms += [time, *atom.terms]
        sources[place] = 0, start, TIME + 1 + len(terms)
    rest = [place for place in range(len(form.atoms)) if place not in use.places]
    for at, place in enumerate(rest, 1):
        sources[place] = at, TIME, TIME + 1 + len(form.atoms[place].terms)
    atoms = (AtomForm(name, tuple(terms)), *(form.atoms[place] for place in rest))
    told = Told(
        tuple(atom.predicate for atom in form.atoms),
        tuple(sources[place] for place in range(len(form.atoms))),
    )
    return replace(form, atoms=atoms), told


class JoinedMatches(Matches):
    """The solutions of a join: each supports the row that holds its facts."""

    def __init__(self, shared: SharedJoin, present: Present, target: Target) -> None:
        super().__init__(shared.form(), present, target, predicate=shared.name, silent=True)
        self._head = _head(present)

    def refresh(self) -> None:
        """The head is the same for tables of every shape."""


def _head(present: Present) -> Callable[..., Any]:
    lattices = present.lattices

    def head(
        rows: tuple[Row, ...], _: tuple[Any, ...]
    ) -> tuple[tuple[Any, ...], int | None, Instant, tuple[()], Parafacts]:
        columns: list[Any] = []
        time: int | None = None
        expires: Instant = END
        passed: Parafacts = None
        for row in rows:
            columns += row[TIME:]
            if row[TIME] is not None and (time is None or row[TIME] > time):
                time = row[TIME]
            if row[EXPIRES] < expires:
                expires = row[EXPIRES]
            if row[PARAFACTS] is not None:
                passed = merge_parafacts(passed, row[PARAFACTS], lattices)
        return tuple(columns), time, expires, (), passed

    return head


class JoinUnit(Unit):
    """Keeps the solutions of a common join, for the units of the rules that have it."""

    def __init__(
        self, shared: SharedJoin, present: Present, reporter: Reporter, limits: Limits, number: int
    ) -> None:
        unlimited = replace(limits, rows=_NO_LIMIT)  # limits are for what a program names
        super().__init__((shared.name,), present, reporter, unlimited, number)
        self.shared = shared
        self.add(JoinedMatches(shared, present, self))


def named(found: Iterable[Judged]) -> list[SharedJoin]:
    """Common joins with their names, which no program can write."""
    ordered = sorted(found, key=lambda each: each.join.rules)
    return [SharedJoin(f"join {number}", each) for number, each in enumerate(ordered, 1)]


def reading_of(joins: Iterable[SharedJoin]) -> Mapping[int, tuple[RuleForm, Told]]:
    """For each rule that reads a shared join its form and its facts, by number."""
    return {
        use.form.number: reading(use.form, use, shared.name)
        for shared in joins
        for use in shared.join.uses
    }


__all__ = ["JoinUnit", "SharedJoin", "Told", "named", "reading_of"]
