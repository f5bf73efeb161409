"""Rounds of the fixed point of a recursion at one instant, by interpretation: for explanations.

A proof may not rest on itself, so it needs to know which facts stand without some others.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import proxy

from tidemill.datalog.interpreter import Match, Matcher, derived_time, observed, own_expiry
from tidemill.datalog.lattices import TALLIES, Parafacts, merge_parafacts, observe_parafacts
from tidemill.datalog.logical.forms import RuleForm
from tidemill.datalog.logical.plan import reads_any
from tidemill.datalog.presence import BEGINNING, END, Instant
from tidemill.datalog.tables import FIRST, PARAFACTS, Fact, Key, Row, Table
from tidemill.datalog.values import INT_MIN, Failed, Value

if TYPE_CHECKING:
    from tidemill.datalog.point_in_time import PointInTime


@dataclass(frozen=True, slots=True)
class Living:
    """A solution that outlives facts: those of its match, its head, and when its facts met."""

    keys: tuple[Key, ...]
    arguments: tuple[Value, ...]
    time: int | None
    met: Instant


def ranks_of(
    present: PointInTime, component: Sequence[str], excluded: Collection[Fact]
) -> dict[Fact, int]:
    """In which round each fact of a recursion is first there if the excluded ones never are.

    A round takes at least one fact from the one before. Facts with arguments that none has at the
    instant are left out. Cost: O(matches), each by interpretation.
    """
    return _Rounds(present, component, excluded).run()


class _Rounds:
    """Facts of one recursion, found round by round."""

    def __init__(
        self, present: PointInTime, component: Sequence[str], excluded: Collection[Fact]
    ) -> None:
        self._present = present
        self._excluded = excluded
        self._forms = [
            form
            for form in present.plan.rules
            if form.deductive and form.head.predicate in component
        ]
        self._known = {
            name: {row[FIRST:] for row in present.table(name).rows} for name in component
        }
        named = {name for form in self._forms for name, _ in form.head.lattices}
        self._lattices = named - TALLIES - {"count_distinct"}
        self._tables = {name: Table([]) for name in component}
        self._fresh: dict[str, list[Row]] = {}
        self._inner: dict[Fact, Parafacts] = {}
        self._latest: dict[Fact, int | None] = {}
        self._ranks: dict[Fact, int] = {}
        self._round = 0
        vocabulary = present.plan.checked.vocabulary
        self._merging = vocabulary.lattices
        mine: _Rounds = proxy(self)
        self._matcher = Matcher(
            lambda name: mine._table(name), vocabulary, present.at, present.allowance
        )

    def _table(self, predicate: str) -> Table:
        mine = self._tables.get(predicate)
        return self._present.table(predicate) if mine is None else mine

    def run(self) -> dict[Fact, int]:
        """The rounds until nothing is new."""
        self._begin()
        while self._fresh:
            delta, self._fresh = self._fresh, {}
            for name, rows in delta.items():
                self._tables[name].extend(rows)
            self._round += 1
            for form in self._forms:
                for at, atom in enumerate(form.atoms):
                    if not atom.is_clock:
                        for row in delta.get(atom.predicate, ()):
                            for match in self._matcher.matches_of(form, at, row):
                                self._derive(form, match)
        return self._ranks

    def _begin(self) -> None:
        """Add the facts that no recursive rule derives: inputs, solutions that live on."""
        for name in self._tables:
            for key, row in self._present.given_rows(name).items():
                self._add((name, key), self._carried(row))
        for form in self._forms:
            if not reads_any(form, tuple(self._tables)):
                for match in self._matcher.matches(form, {}):
                    self._derive(form, match)
            if form.lingers or form.outlives:
                self._live_on(form)

    def _live_on(self, form: RuleForm) -> None:
        name = form.head.predicate
        for each in self._present.living(form, {}):
            if max(each.met, INT_MIN) < self._present.at:
                key = (each.time, *each.arguments)
                rows = self._present.table(name).of_key(key)
                self._add((name, key), self._carried(rows[0]) if rows else None)

    def _derive(self, form: RuleForm, match: Match) -> None:
        """Add what a match derives at the instant; one that fails derives nothing."""
        name, matcher, at = form.head.predicate, self._matcher, self._present.at
        try:
            arguments = tuple(matcher.value(term, match.bound) for term in form.head.terms)
            time = derived_time(form, match, matcher)
            if form.outlives and own_expiry(form, match, matcher) <= at:
                return
            said = self._said(form, match)
        except (Failed, ValueError):
            return
        if arguments not in self._known[name] or (
            form.head.time and time is not None and time > at
        ):
            return
        if form.head.aggregates and not form.head.time:
            group = name, arguments
            known = self._latest.get(group)
            time = max((t for t in (known, time) if t is not None), default=None)
            self._latest[group] = time
        self._add((name, (time, *arguments)), said)

    def _said(self, form: RuleForm, match: Match) -> Parafacts:
        """Values of the recursion's lattices that a match gives its head: passed and written."""
        said: Parafacts = None
        dropped = form.head.suppressed | {name for name, _ in form.head.lattices}
        for atom, row in zip(form.atoms, match.rows, strict=True):
            passed = [e for e in self._carried(row) or () if e[0] not in atom.suppressed | dropped]
            said = merge_parafacts(said, tuple(passed) or None, self._merging)
        for name, terms in form.head.lattices:
            if name in self._lattices:
                values = [self._matcher.value(term, match.bound) for term in terms]
                mine = ((name, self._merging[name].inject(*values)),)
                said = merge_parafacts(said, mine, self._merging)
        return said

    def _carried(self, row: Row) -> Parafacts:
        """Values of the recursion's lattices that a fact carries."""
        seen = [(name, observed(row[PARAFACTS], name)) for name in sorted(self._lattices)]
        inner = [(name, self._merging[name].inject(*each)) for name, each in seen if each]
        return tuple(inner) or None

    def _add(self, fact: Fact, said: Parafacts) -> None:
        if fact in self._excluded:
            return
        new = fact not in self._ranks
        merged = said if new else merge_parafacts(self._inner[fact], said, self._merging)
        if new:
            self._ranks[fact] = self._round
        elif merged == self._inner[fact]:
            return
        self._inner[fact] = merged
        name, key = fact
        row = (BEGINNING, END, END, observe_parafacts(merged, self._merging), *key)
        self._fresh.setdefault(name, []).append(row)
