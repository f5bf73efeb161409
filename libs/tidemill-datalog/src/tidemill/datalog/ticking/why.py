"""Why a record is present in a ticked program: a proof that goes back over the ticks, down to
inputs.

A fact that a rule with `@next` carried is proved by the facts of the tick before. A fact of a
message is proved by those of the tick that sent it, at its node. A tick in which nothing could
differ did not run: facts that it carried are shown as the last tick's. The proof is built with a
list of open facts: any number of ticks deep.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

from tidemill.datalog.allowance import Allowance
from tidemill.datalog.interpreter import Bindings, Match
from tidemill.datalog.logical.forms import RuleForm, carried_variables, matched_variables
from tidemill.datalog.logical.plan import LogicalPlan, logical_plan
from tidemill.datalog.point_in_time import Living, PointInTime, given_rows, living_in
from tidemill.datalog.presence import BEGINNING, END, Instant
from tidemill.datalog.proofs import Kind, Proof
from tidemill.datalog.records import Record
from tidemill.datalog.relevance import Pattern, fits, relevant_patterns
from tidemill.datalog.state import (
    ESTABLISHED,
    LINGERING,
    EstablishedSolution,
    LingeringSolution,
    StateRow,
    decode_fields,
)
from tidemill.datalog.tables import Fact, Key, Row, Table
from tidemill.datalog.tick_state import CARRIED
from tidemill.datalog.ticking.history import TickHistory, TickNumber
from tidemill.datalog.ticks import Message, Support
from tidemill.datalog.values import equal
from tidemill.datalog.why import Builder, Context, Solution, TooCyclic

What = TypeVar("What")

_SHORT = 16
"""Up to how many ticks a stretch is listed under each of them."""


class _BeforeHistory(Exception):
    """Something was established by a tick that is before the history which is known."""


def why_in_ticks(
    history: TickHistory,
    record: Record,
    at: int,
    node: int = 0,
    *,
    allowance: Allowance | None = None,
) -> Proof | None:
    """A proof that the record is present at the instant `at` at a node; None if it is not.

    `history` reaches to `at` or further. The record is a fact, with its time where facts differ by
    it. Cost: one look at all that the nodes ever saw, said and handed on. For each tick of the
    proof come the facts that fit the arguments of the record.
    """
    number = history.nodes[node].number_at(at)
    if number is None:
        return None
    plan, allowance = logical_plan(history.program), allowance or Allowance()
    place = history.nodes[node].places[number]
    known = _Known(history, relevant_patterns(plan.rules, record.predicate, record.arguments))
    try:
        return _proved(_TickBuilder(plan, allowance, known, exact=True), record, at, place)
    except TooCyclic:
        return _proved(_TickBuilder(plan, allowance, known, exact=False), record, at, place)


def _proved(builder: _TickBuilder, record: Record, at: int, place: TickNumber) -> Proof | None:
    key = builder.key_of(record, place)
    if key is None:
        return None
    row = builder.point(place).table(record.predicate).of_key(key)[0]
    return builder.build(record.predicate, key, place) if row[2] > at else None


class _ByTick(Generic[What]):
    """Stretches by the ticks that they cover: short ones under each, others in a list."""

    def __init__(self) -> None:
        self._short: dict[int, list[What]] = {}
        self._long: list[tuple[What, int, float]] = []

    def add(self, what: What, begun: int, ended: float) -> None:
        if ended - begun > _SHORT:
            self._long.append((what, begun, ended))
        else:
            for number in range(begun, int(ended)):
                self._short.setdefault(number, []).append(what)

    def at(self, number: int) -> list[What]:
        """The things whose stretch covers a tick."""
        covering = [what for what, begun, ended in self._long if begun <= number < ended]
        return covering + self._short.get(number, [])


class _Known:
    """A history as far as it fits the patterns of a question, by node and tick."""

    def __init__(self, history: TickHistory, patterns: Mapping[str, set[Pattern]]) -> None:
        self.ticks = history
        self._seen: list[_ByTick[Record]] = []
        self._said: list[_ByTick[Record]] = []
        self._carried: list[_ByTick[tuple[Fact, list[Support]]]] = []
        self._solutions: list[_ByTick[tuple[StateRow, int]]] = []
        self._since: list[dict[Fact, list[tuple[int, float]]]] = [{} for _ in history.nodes]
        for node in history.nodes:
            seen: _ByTick[Record] = _ByTick()
            said: _ByTick[Record] = _ByTick()
            carried: _ByTick[tuple[Fact, list[Support]]] = _ByTick()
            solutions: _ByTick[tuple[StateRow, int]] = _ByTick()
            for told, into in ((node.seen, seen), (node.said, said)):
                for record, begun, ended in told.every():
                    if fits(record.arguments, patterns.get(record.predicate, ())):
                        into.add(record, begun, ended)
            for row, begun, ended in node.handed.every():
                if row[1] != CARRIED:
                    solutions.add((row, begun), begun, ended)
                    continue
                name, key, *values = decode_fields(row[2])
                if fits(key[1:], patterns.get(name, ())):
                    carried.add(((name, key), values), begun, ended)
                    since = self._since[node.number].setdefault((name, key), [])
                    since.append((begun, ended))
            self._seen.append(seen)
            self._said.append(said)
            self._carried.append(carried)
            self._solutions.append(solutions)

    def inputs_at(self, place: TickNumber) -> list[Record]:
        """The input records of a tick that have not expired, those of messages among them."""
        return self._present(self._seen, place)

    def said_at(self, place: TickNumber) -> list[Record]:
        """The derived records of a tick that have not expired."""
        return self._present(self._said, place)

    def _present(self, found: Sequence[_ByTick[Record]], place: TickNumber) -> list[Record]:
        (node, number), at = self.ticks.ran[place], self.ticks.instant(place)
        records = found[node].at(number)
        return [each for each in records if each.expires is None or each.expires > at]

    def carried_to(self, place: TickNumber) -> list[Fact]:
        """The facts that were carried to a tick and have not expired."""
        (node, number), at = self.ticks.ran[place], self.ticks.instant(place)
        carried = self._carried[node].at(number)
        return [fact for fact, told in carried if any(ends > at for ends, _ in told)]

    def carried_since(self, place: TickNumber, fact: Fact) -> int:
        """First of the ticks to all of which, up to this one, the fact was carried alike."""
        node, number = self.ticks.ran[place]
        stretches = self._since[node].get(fact, ())
        return min((b for b, ended in stretches if b <= number < ended), default=number)

    def handed_to(self, place: TickNumber, rule: int, kind: str) -> Iterator[tuple[Any, Instant]]:
        """The solutions of a rule that were handed to a tick: fields, and when each was written."""
        (node, number), instants = self.ticks.ran[place], self.ticks.nodes
        for row, begun in self._solutions[node].at(number):
            if row[:2] == (rule, kind):
                at = instants[node].instants[begun - 1] if begun else BEGINNING
                yield decode_fields(row[2]), at


class _TickBuilder(Builder):
    """Builds proofs over ticks: instants are numbers of ticks, and facts come from earlier ones."""

    def __init__(
        self, plan: LogicalPlan, allowance: Allowance, known: _Known, *, exact: bool
    ) -> None:
        super().__init__(plan, self._found, allowance, exact=exact)
        self._known = known
        self._ticks = known.ticks
        self._inputs: dict[TickNumber, set[Fact]] = {}
        self._later = [form for form in plan.rules if not form.deductive]
        self._above: list[tuple[int, Fact, TickNumber, Proof]] = []
        """Carried facts above the open one, each with how many were open below, and its tick."""

    def _found(self, at: Instant) -> PointInTime:
        """The facts that a tick was given or said."""
        place, checked = int(at), self.plan.checked
        inputs, said = self._known.inputs_at(place), self._known.said_at(place)
        given = {
            name: given_rows([each for each in inputs if each.predicate == name], checked, name)
            for name in {record.predicate for record in inputs}
        }
        self._inputs[place] = {(name, key) for name, rows in given.items() for key in rows}
        facts = {name: dict(rows) for name, rows in given.items()}
        for record in said:
            facts.setdefault(record.predicate, {}).update(
                given_rows([record], checked, record.predicate)
            )
        for name, key in self._known.carried_to(place):
            if key in facts.get(name, ()):
                given.setdefault(name, {}).setdefault(key, facts[name][key])
        tables = {name: Table([*rows.values()]) for name, rows in facts.items()}
        instant = self._ticks.instant(place)
        return PointInTime(
            instant, self.plan, self._allowance, tables, given, self._living_at, place
        )

    def _living_at(self, point: PointInTime, form: RuleForm, bound: Bindings) -> Iterator[Living]:
        """The solutions that ticks before established, and those of the tick itself."""
        place, matcher = point.place, point.matcher
        lives = [
            (each.values, living)
            for fields, met in self._known.handed_to(place, form.number, LINGERING)
            if (living := self._life(point, form, each := LingeringSolution(*fields), met))
        ]
        if form.outlives:
            known, names = set(), [each.name for each in matched_variables(form)]
            met_at = {living.keys: living.met for _, living in lives}
            for fields, _ in self._known.handed_to(place, form.number, ESTABLISHED):
                solution = EstablishedSolution(*fields)
                if solution.expires > point.at:
                    keys, since = solution.identity[1], min(each[0] for each in solution.versions)
                    known.add(solution.identity[1:])
                    since = met_at.get(keys, since)
                    yield Living(keys, solution.arguments, solution.time, since)
        else:
            names = carried_variables(form)
            known = {(living.keys, values) for values, living in lives}
            yield from (living for _, living in lives)
        for match in matcher.matches(form, bound):
            if (match.keys, tuple(match.bound[name] for name in names)) not in known:
                held = [(point.at, point.at + 1)]
                living = living_in(held, form, match, matcher, point.at)
                if living is not None:
                    yield living

    def _life(
        self, point: PointInTime, form: RuleForm, life: LingeringSolution, met: Instant
    ) -> Living | None:
        """The solution of a life that was handed to the tick, if it goes on there."""
        bound: Bindings = dict(zip(carried_variables(form), life.values, strict=True))
        rows: list[Row] = []
        for atom, key in zip(form.atoms, life.keys, strict=True):
            known: list[Row] = [(BEGINNING, END, END, (), *key)]
            leaves = atom.is_clock or "expires" in atom.suppressed
            if not leaves:
                known = point.table(atom.predicate).of_key(key)
            asked = replace(atom, lattices=()) if leaves else atom
            further = point.matcher.agree(form, asked, known[0], bound) if known else None
            if further is None:
                return None
            bound = further
            rows.append(known[0])
        if point.matcher.blocker(form, bound) is not None:
            return None
        match = Match(tuple(rows), bound)
        return living_in([(met, point.at + 1)], form, match, point.matcher, point.at)

    def part(self, text: str, at: Instant, kind: Kind, record: Record | None = None) -> Proof:
        place = int(at)
        instant = self._ticks.instant(place)
        return Proof(text, instant, kind, record, place=self._ticks.name(place).removeprefix("of "))

    def place_of(self, at: Instant, now: PointInTime) -> Instant:
        """The tick of the same node at or before an instant. Raises: _BeforeHistory."""
        node = self._ticks.nodes[self._ticks.ran[now.place][0]]
        number = None if at == BEGINNING else node.number_at(int(at))
        if number is None:
            raise _BeforeHistory
        return node.places[number]

    def expand(self, node: Proof, predicate: str, key: Key, at: Instant, context: Context) -> None:
        """Expand as for one timeline; a solution from before the history is a leaf."""
        while self._above and self._above[-1][0] > len(self._open):
            self._above.pop()
        try:
            super().expand(node, predicate, key, at, context)
        except _BeforeHistory:
            node.kind = "handed"

    def given(self, node: Proof, predicate: str, key: Key, at: Instant) -> None:
        """Say where a fact comes from: an input, a message, or the tick before."""
        place = int(at)
        if (predicate, key) in self._inputs[place]:
            if not self._sent(node, predicate, key, place):
                node.kind = "input" if predicate in self._ticks.inputs else "handed"
            return
        owner, number = self._ticks.ran[place]
        before = self._ticks.nodes[owner].before(number)
        if before is None:
            node.kind = "handed"
            return
        carrying = [f for f in self._later if f.next_tick and f.head.predicate == predicate]
        if self._kept(node, carrying, predicate, key, place):
            return
        self._above.append((len(self._open), (predicate, key), place, node))
        if not self._derived_at(node, carrying, predicate, key, key, before):
            raise AssertionError(f"no derivation of {node.text} in the tick before {place}")

    def _kept(
        self, node: Proof, carrying: list[RuleForm], predicate: str, key: Key, place: TickNumber
    ) -> bool:
        """Whether a later tick was handed the fact because of itself; then both have one proof.

        Facts that rules only keep, over many predicates and ticks, take the lines of one round.
        """
        owner, number = self._ticks.ran[place]
        since = self._known.carried_since(place, (predicate, key))
        for _, fact, above, kept in reversed(self._above):
            node_above, later = self._ticks.ran[above]
            if fact != (predicate, key) or node_above != owner:
                continue
            if self._known.carried_since(above, fact) == since:
                forms = [form for form in carrying if form.number == kept.rule]
                for began in range(since, min(since + later - number, number - 1)):
                    at = self._ticks.nodes[owner].places[began]
                    if self._ticks.nodes[owner].goes_on(began):
                        continue
                    if self._derived_at(node, forms, predicate, key, key, at):
                        kept.solutions = node.solutions
                        return True
            break
        return False

    def _sent(self, node: Proof, predicate: str, key: Key, place: TickNumber) -> bool:
        """Whether a message brought the fact; then prove that it was sent."""
        owner = self._ticks.ran[place][0]
        sending = [f for f in self._later if f.sends and f.head.predicate == predicate]
        for sender in self._ticks.senders(place) if sending else ():
            if any(_is(m, owner, predicate, key) for m in self._ticks.sent.get(sender, ())):
                to = (key[0], owner, *key[1:])
                if self._derived_at(node, sending, predicate, key, to, sender):
                    return True
        return False

    def _derived_at(
        self,
        node: Proof,
        forms: Iterable[RuleForm],
        predicate: str,
        key: Key,
        to: Key,
        place: TickNumber,
    ) -> bool:
        """Prove the fact by the rules of another tick, if one of them derives it there."""
        point = self.point(place)
        for form in forms:
            found: list[Solution] = self.solutions_anew(form, to, point)
            if found:
                usable = found if form.head.aggregates else found[:1]
                self.derive(node, form, usable, (predicate, key), place, None)
                return True
        return False


def _is(message: Message, node: int, predicate: str, key: Key) -> bool:
    record = message.record
    return (
        equal(message.node, node)
        and record.predicate == predicate
        and record.time == key[0]
        and all(equal(a, b) for a, b in zip(record.arguments, key[1:], strict=True))
    )
