"""The facts of single instants, with solutions that live on from earlier ones: for explanations.

The dataflow derives all facts that a question can depend on once, each with its presences. A proof
may not rest on itself, so the rounds of recursions tell which facts stand without some others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TypeAlias
from weakref import proxy

from tidemill.arrangement.looks import with_looks
from tidemill.datalog.allowance import Allowance
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.interpreter import (
    Bindings,
    Match,
    Matcher,
    derived_time,
    observed,
    own_expiry,
)
from tidemill.datalog.lattices import TALLIES, Parafacts, merge_parafacts, observe_parafacts
from tidemill.datalog.logical.forms import RuleForm
from tidemill.datalog.logical.plan import LogicalPlan, plan_below, reads_any
from tidemill.datalog.presence import (
    BEGINNING,
    END,
    Instant,
    Interval,
    Presence,
    intersect,
    normalise,
    subtract,
)
from tidemill.datalog.records import Record
from tidemill.datalog.tables import (
    EXPIRES,
    FIRST,
    PARAFACTS,
    START,
    STOP,
    TIME,
    Fact,
    Key,
    Row,
    Table,
)
from tidemill.datalog.values import INT_MIN, Failed, Value, widen


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


Inputs: TypeAlias = "Mapping[str, Sequence[Presence]]"


def derived(
    plan: LogicalPlan, inputs: Inputs, predicates: Collection[str], upper: int, allowance: Allowance
) -> dict[str, Table]:
    """All facts of some predicates below an instant with their presences. Raises: Exhausted."""
    from tidemill.datalog.dataflow import evaluate_plan  # loads loops

    before, below = allowance.held, plan_below(plan, predicates)
    found, _ = evaluate_plan(below, inputs, upper=upper, told=predicates, allowance=allowance)
    tables = {name: Table(rows_of(found.get(name, ()))) for name in predicates}
    allowance.settle(before + sum(table.bytes_held for table in tables.values()))
    return tables


def rows_of(presences: Iterable[Presence]) -> list[Row]:
    """Presences as rows to match, with parafacts as they are seen."""
    return [_row(each.record, each.start, each.end) for each in with_looks(presences)]


def _row(record: Record, start: Instant = BEGINNING, end: Instant = END) -> Row:
    expires = END if record.expires is None else record.expires
    return (start, end, expires, record.parafacts, record.time, *record.arguments)


def given_rows(
    records: Iterable[Record], checked: CheckedProgram, predicate: str
) -> dict[Key, Row]:
    """Input facts of an instant by key, in the types of the columns."""
    floats = [kind == "float" for _, kind in checked.columns.get(predicate, ())]
    found = {}
    for record in with_looks(records):
        both = zip(record.arguments, floats, strict=True)
        key = (record.time, *(widen(value) if floating else value for value, floating in both))
        found[key] = (*_row(record)[:TIME], *key)
    return found


class FactHistory:
    """The facts that a question can depend on, up to an instant."""

    def __init__(
        self,
        plan: LogicalPlan,
        inputs: Inputs,
        predicates: Collection[str],
        upper: int,
        allowance: Allowance,
        deriving: LogicalPlan | None = None,
    ) -> None:
        """`deriving` derives the facts, by default `plan`, whose rules are asked about."""
        self._plan = plan
        self._allowance = allowance
        self._given = {name: inputs[name] for name in predicates if name in inputs}
        self._tables = derived(deriving or plan, inputs, predicates, upper, allowance)

    def table(self, predicate: str) -> Table:
        """The facts of a predicate at all instants."""
        return self._tables.get(predicate) or Table([])

    def point(self, at: Instant) -> PointInTime:
        """The facts of an instant."""
        instant = INT_MIN if at == BEGINNING else int(at)
        given = {
            name: given_rows(
                [p.record for p in with_looks(presences) if p.start <= instant < p.end],
                self._plan.checked, name,
            )
            for name, presences in self._given.items()
        }  # fmt: skip
        facts = self._at(instant)
        return PointInTime(
            instant, self._plan, self._allowance, facts, given, self._living, instant
        )

    def _at(self, instant: int) -> dict[str, Table]:
        return {
            name: Table([r for r in with_looks(table.rows) if r[START] <= instant < r[STOP]])
            for name, table in self._tables.items()
        }

    def _living(self, point: PointInTime, form: RuleForm, bound: Bindings) -> Iterator[Living]:
        """The living solutions of a rule that outlives facts, found over all instants up to one."""
        vocabulary = self._plan.checked.vocabulary
        matcher = Matcher(self.table, vocabulary, point.at, self._allowance)
        found: dict[tuple[object, ...], tuple[Match, list[Interval], list[Interval]]] = {}
        for match in matcher.atoms_match(form, bound, range(len(form.atoms))):
            if not matcher.conditions_hold(form, match.bound):
                continue
            identity = match.keys, tuple(sorted(match.bound.items(), key=itemgetter(0)))
            _, together, staying = found.setdefault(identity, (match, [], []))
            both = [*zip(form.atoms, match.rows, strict=True)]
            together.append(_common(match.rows))
            staying.append(_common([r for atom, r in both if "expires" not in atom.suppressed]))
        for match, together, staying in found.values():
            blocked = matcher.blocked(form, match.bound)
            stretches = subtract(normalise(together), blocked)
            if form.lingers:
                stretches = _lives(stretches, subtract(normalise(staying), blocked))
            living = living_in(stretches, form, match, matcher, point.at)
            if living is not None:
                yield living


def _common(rows: Sequence[Row]) -> Interval:
    """When facts are present together."""
    starts, ends = (row[START] for row in rows), (row[STOP] for row in rows)
    return max(starts, default=BEGINNING), min(ends, default=END)


def _lives(together: Sequence[Interval], runs: Sequence[Interval]) -> list[Interval]:
    """From where all facts meet to the end of the run of those whose end ends a solution."""
    met = [(intersect(together, [run]), run[1]) for run in runs]
    return [(inside[0][0], end) for inside, end in met if inside]


def living_in(
    stretches: Sequence[Interval], form: RuleForm, match: Match, matcher: Matcher, at: int
) -> Living | None:
    """The solution of a match whose body holds in some stretches, if it lives at an instant.

    A head that fails derives nothing.
    """
    try:
        arguments = tuple(matcher.value(term, match.bound) for term in form.head.terms)
        time = derived_time(form, match, matcher)
        own = own_expiry(form, match, matcher)
    except (Failed, ValueError):
        return None
    for start, end in stretches:
        begin = start if time is None or not form.head.time else max(start, time)
        if form.outlives and begin < end and begin <= at < own and begin < own:
            met = start if form.lingers else begin
            return Living(match.keys, arguments, time, met)
        if not form.outlives and start <= at < end:
            return Living(match.keys, arguments, time, start)
    return None


@dataclass(slots=True)
class PointInTime:
    """The program at one instant: its facts, how they match, and what lives on.

    `given` are the facts that no rule has to derive. `find` gives the living solutions of a rule
    that outlives facts, of heads that agree with some bindings.
    """

    at: int
    plan: LogicalPlan
    allowance: Allowance
    tables: Mapping[str, Table]
    given: Mapping[str, Mapping[Key, Row]]
    find: Callable[[PointInTime, RuleForm, Bindings], Iterable[Living]]
    place: int
    """Under which number proofs know it: the instant, or the number of a tick."""
    _ranks: dict[tuple[tuple[str, ...], frozenset[Fact]], Mapping[Fact, int]] = field(
        default_factory=dict
    )

    def table(self, predicate: str) -> Table:
        """The facts of a predicate at this instant."""
        return self.tables.get(predicate) or Table([])

    @property
    def matcher(self) -> Matcher:
        """Finds matches at this instant."""
        return Matcher(self.table, self.plan.checked.vocabulary, self.at, self.allowance)

    def given_rows(self, predicate: str) -> Mapping[Key, Row]:
        """The facts of a predicate that are inputs at this instant."""
        return self.given.get(predicate, {})

    def is_given(self, predicate: str, key: Key) -> bool:
        """Whether the fact is an input at this instant."""
        return key in self.given_rows(predicate)

    def living(self, form: RuleForm, bound: Bindings) -> Iterable[Living]:
        """The living solutions of a rule that outlives facts."""
        return self.find(self, form, bound)

    def record(self, predicate: str, key: Key) -> Record | None:
        """The record of a fact at this instant, None if it is absent."""
        rows = self.table(predicate).of_key(key)
        if not rows:
            return None
        expires = rows[0][EXPIRES]
        ends = None if expires == END else int(expires)
        return Record(predicate, key[1:], key[0], ends, rows[0][PARAFACTS])

    def ranked(self, component: tuple[str, ...], excluded: frozenset[Fact]) -> bool:
        """Whether `ranks` knows its answer already."""
        return (component, excluded) in self._ranks

    def ranks(self, component: tuple[str, ...], excluded: frozenset[Fact]) -> Mapping[Fact, int]:
        """Round of its fixed point in which each fact of a component comes, without some."""
        known = self._ranks.get((component, excluded))
        if known is None:
            known = self._ranks[component, excluded] = ranks_of(self, component, excluded)
        return known
