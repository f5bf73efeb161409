"""Why a record is present at an instant: a proof down to inputs, for every kind of rule and any
depth.

Nothing is recorded while views are maintained: the facts that the record can depend on are derived
again, once, with their presences. A solution that outlived its facts is proved at the instant at
which it was established. The proof is built from the top with a list of open facts, so depth is
bounded by memory alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeAlias

from tidemill.arrangement.looks import with_looks
from tidemill.datalog.allowance import Allowance, match_bytes
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.graphs import strong_components
from tidemill.datalog.interpreter import (
    Bindings,
    Match,
    clock_row,
    derived_time,
    derives,
    head_bindings,
)
from tidemill.datalog.logical.forms import AbsentForm, RuleForm
from tidemill.datalog.logical.plan import LogicalPlan, logical_plan
from tidemill.datalog.magic_sets import magic_plan, tells_ends
from tidemill.datalog.point_in_time import FactHistory, PointInTime
from tidemill.datalog.presence import BEGINNING, Instant, Presence, fact_text
from tidemill.datalog.proofs import Kind, Proof
from tidemill.datalog.records import Record, format_value
from tidemill.datalog.relevance import relevant_inputs, relevant_patterns
from tidemill.datalog.tables import ANY_VALUE, Fact, Key, Row
from tidemill.datalog.values import INT_MIN, Failed, equal

Context: TypeAlias = "frozenset[Fact] | None"
"""The facts above one in its cycle; None where solutions of earlier rounds are enough."""

EXACT_WORK_MAX = 300_000
"""Looks at facts and matches above which proofs of recursive groups use earlier rounds."""


class TooCyclic(Exception):
    """A proof of recursive groups without the facts above them takes too long."""


@dataclass(frozen=True, slots=True)
class Solution:
    """One way to derive a fact: the facts of a match at the instant at which they met."""

    at: Instant
    match: Match


def why(
    checked: CheckedProgram,
    inputs: Mapping[str, Sequence[Presence]],
    record: Record,
    at: int,
    *,
    allowance: Allowance | None = None,
) -> Proof | None:
    """A proof that the record is present at the instant `at`; None if it is not.

    `inputs` are all presences up to `at`; only facts that the record can depend on are derived. The
    record is a fact, with its time where facts differ by it; expiry and parafacts are not compared.
    Raises: Exhausted. Cost: one derivation of the facts that fit the arguments, from the beginning
    on; the facts of each instant of the proof.
    """
    plan, allowance = logical_plan(checked), allowance or Allowance()
    patterns = relevant_patterns(plan.rules, record.predicate, record.arguments)
    relevant = relevant_inputs(inputs, patterns)
    deriving = plan
    if not tells_ends(plan):
        deriving = magic_plan(plan, record.predicate, record.arguments)
    history = FactHistory(plan, relevant, patterns, at + 1, allowance, deriving)
    try:
        return proved(Builder(plan, history.point, allowance), record, at)
    except TooCyclic:
        return proved(Builder(plan, history.point, allowance, exact=False), record, at)


def proved(builder: Builder, record: Record, at: int) -> Proof | None:
    """The proof of a record at an instant; None if it is not there. Raises: TooCyclic."""
    key = builder.key_of(record, at)
    return None if key is None else builder.build(record.predicate, key, at)


class Builder:
    """Builds one proof from the top, over the facts of the instants that it asks for."""

    def __init__(
        self,
        plan: LogicalPlan,
        find: Callable[[Instant], PointInTime],
        allowance: Allowance,
        *,
        exact: bool = True,
    ) -> None:
        """`find` gives the facts of an instant. `exact` proofs of recursive groups are whole."""
        self.plan = plan
        self._checked = plan.checked
        self._find = find
        self._allowance = allowance
        self._work = 0
        self._points: dict[Instant, PointInTime] = {}
        self._nodes: dict[tuple[str, Key, Instant, Context], Proof] = {}
        self._open: list[tuple[Proof, str, Key, Instant, Context]] = []
        self._components = {
            name: component for component in plan.checked.components for name in component
        }
        self._forms: dict[str, list[RuleForm]] = {}
        for form in plan.rules:
            if form.deductive:
                self._forms.setdefault(form.head.predicate, []).append(form)
        self._grouping = {
            name
            for component in plan.checked.components
            if any(form.head.aggregates for each in component for form in self._forms.get(each, ()))
            for name in component
            if exact and name in plan.checked.recursive
        }
        self._cycles: dict[tuple[str, Key, Instant], int] = {}
        self._links = 0
        self._solved: dict[tuple[int, Key, Instant], list[Solution]] = {}
        self._texts: dict[int, str] = {}

    def point(self, at: Instant) -> PointInTime:
        """The facts at an instant; evaluated once."""
        known = self._points.get(at)
        if known is None:
            known = self._points[at] = self._find(at)
        return known

    def key_of(self, record: Record, at: int) -> Key | None:
        """The fact that the record means: with its time, or else timeless, or the latest."""
        found = [
            row[4:]
            for row in with_looks(self.point(at).table(record.predicate).rows)
            if len(row) == 5 + len(record.arguments)
            and all(equal(a, b) for a, b in zip(row[5:], record.arguments, strict=True))
        ]
        if record.time is not None:
            return next((key for key in found if key[0] == record.time), None)
        timeless = next((key for key in found if key[0] is None), None)
        if timeless is not None or not found:
            return timeless
        latest: Key = max(found, key=lambda key: key[0])
        return latest

    def build(self, predicate: str, key: Key, at: int) -> Proof:
        """The proof of a fact that is present."""
        root = self.node(predicate, key, at, self._fresh(predicate))
        while self._open:
            self._allowance.take(match_bytes(len(key)))
            self.expand(*self._open.pop())
        return root

    def _fresh(self, predicate: str) -> Context:
        """The context of a fact that is entered from outside its cycle."""
        return frozenset() if predicate in self._grouping else None

    def _cycle(self, predicate: str, key: Key, at: Instant) -> int:
        """A number that facts of one recursion share if each can be derived from the other."""
        if (predicate, key, at) not in self._cycles:
            found = strong_components([(predicate, key)], lambda fact: self._facts_below(*fact, at))
            for cycle in found:
                self._cycles.update(
                    dict.fromkeys(((*fact, at) for fact in cycle), len(self._cycles))
                )
        return self._cycles[predicate, key, at]

    def _facts_below(self, predicate: str, key: Key, at: Instant) -> list[Fact]:
        """The unseen facts of the same recursion that this one uses at the same instant."""
        point = self.point(at)
        if point.is_given(predicate, key):
            return []
        found = [
            fact
            for form in self._forms.get(predicate, ())
            for solution in self._solutions(form, key, point)
            for fact in self._inside(form, solution, predicate, at)
        ]
        self._links += 1 + len(found)
        return [fact for fact in found if (*fact, at) not in self._cycles]

    def _inside(
        self, form: RuleForm, solution: Solution, predicate: str, at: Instant
    ) -> list[Fact]:
        """The facts of a solution that are of the same recursion, at the same instant."""
        if solution.at != at or predicate not in self._checked.recursive:
            return []
        component = self._components[predicate]
        return [
            (atom.predicate, each)
            for atom, each in zip(form.atoms, solution.match.keys, strict=True)
            if atom.predicate in component and not atom.is_clock
        ]

    def node(self, predicate: str, key: Key, at: Instant, context: Context) -> Proof:
        """The proof of a fact at an instant, made once; its premises are derived later."""
        known = self._nodes.get((predicate, key, at, context))
        if known is None:
            record = self.point(at).record(predicate, key)
            known = self.part(fact_text(predicate, key), at, "derived", record)
            self._nodes[predicate, key, at, context] = known
            self._open.append((known, predicate, key, at, context))
        return known

    def part(self, text: str, at: Instant, kind: Kind, record: Record | None = None) -> Proof:
        """A part of the proof without what is below it."""
        return Proof(text, at, kind, record)

    def expand(self, node: Proof, predicate: str, key: Key, at: Instant, context: Context) -> None:
        """Find the solutions of one fact and open the facts below them."""
        point = self.point(at)
        if point.is_given(predicate, key):
            self.given(node, predicate, key, at)
            return
        for form in self._forms.get(predicate, ()):
            solutions = self._solutions(form, key, point)
            if not form.has_body and solutions:
                node.kind, node.rule = "stated", form.number
                return
            if context:
                self._count(len(solutions))
            grounded = (
                s for s in solutions if self._grounded(form, s, predicate, key, at, context)
            )
            usable = list(grounded if form.head.aggregates else islice(grounded, 1))
            if usable:
                self.derive(node, form, usable, (predicate, key), at, context)
                return
        raise AssertionError(f"no derivation of {node.text} at {at}")

    def derive(
        self,
        node: Proof,
        form: RuleForm,
        solutions: Iterable[Solution],
        fact: Fact,
        at: Instant,
        context: Context,
    ) -> None:
        """Add these solutions of a rule to a part of the proof."""
        node.rule, node.rule_text = form.number, self._text(form.number)
        node.solutions = [self._premises(form, each, fact, at, context) for each in solutions]

    def given(self, node: Proof, predicate: str, key: Key, at: Instant) -> None:
        """Say where a fact comes from that no rule has to derive at the instant."""
        node.kind = "input"

    def _count(self, looked_at: int) -> None:
        """Some facts or matches of a cycle are looked at again. Raises: TooCyclic."""
        self._work += looked_at
        if self._work > EXACT_WORK_MAX:
            raise TooCyclic

    def _text(self, number: int) -> str:
        known = self._texts.get(number)
        if known is None:
            known = self._texts[number] = rule_text(self._checked, number)
        return known

    def _solutions(self, form: RuleForm, key: Key, point: PointInTime) -> list[Solution]:
        """The solutions of a rule for a key, as `solutions_anew` finds them.

        Those of recursive groups are kept, since every context asks for them again.
        """
        if form.head.predicate not in self._grouping:
            return self.solutions_anew(form, key, point)
        known = self._solved.get((form.number, key, point.place))
        if known is None:
            known = self.solutions_anew(form, key, point)
            self._solved[form.number, key, point.place] = known
        return known

    def solutions_anew(self, form: RuleForm, key: Key, point: PointInTime) -> list[Solution]:
        """The solutions of a rule that derive the fact at the instant; all of a group, or none."""
        if form.lingers or form.outlives:
            found = list(self._living(form, key, point))
        else:
            found = self._matching(form, key, point)
        if form.head.aggregates and not form.head.time and found:
            times = [derived_time(form, s.match, point.matcher) for s in found]
            latest = max((time for time in times if time is not None), default=None)
            return found if latest == key[0] else []
        return found

    def _matching(self, form: RuleForm, key: Key, point: PointInTime) -> list[Solution]:
        bound = head_bindings(form, key[1:], key[0])
        if bound is None:
            return []
        matcher = point.matcher
        found = []
        for match in matcher.matches(form, bound):
            if not derives(form, match, matcher, key[1:]):
                continue
            try:
                time = derived_time(form, match, matcher)
            except (Failed, ValueError):
                continue
            grouped = form.head.aggregates and not form.head.time
            if (grouped or time == key[0]) and (not form.head.time or key[0] <= point.at):
                found.append(Solution(point.place, match))
        return found

    def _living(self, form: RuleForm, key: Key, point: PointInTime) -> Iterable[Solution]:
        """Solutions that outlive facts, each at the instant at which its facts were all present."""
        grouped = form.head.aggregates and not form.head.time
        bound = head_bindings(form, key[1:], key[0])
        if bound is None:
            return
        for each in point.living(form, bound):
            if form.head.time and (each.time is None or each.time > point.at):
                continue
            if each.arguments == key[1:] and (grouped or each.time == key[0]):
                yield self._recalled(form, each.keys, each.met, point)

    def place_of(self, at: Instant, now: PointInTime) -> Instant:
        """Instant at which the facts of an instant are found, as seen from a point."""
        return INT_MIN if at == BEGINNING else int(at)

    def _recalled(
        self, form: RuleForm, keys: tuple[Key, ...], at: Instant, now: PointInTime
    ) -> Solution:
        """The match of known facts at an instant."""
        place = self.place_of(at, now)
        point = self.point(place)
        rows: list[Row] = []
        bound: Bindings = {}
        matcher = point.matcher
        for atom, key in zip(form.atoms, keys, strict=True):
            if atom.is_clock:
                row = clock_row(key[1], key[2], key[0])
            else:
                row = point.table(atom.predicate).of_key(key)[0]
            rows.append(row)
            bound = matcher.agree(form, atom, row, bound) or bound
        return Solution(place, Match(tuple(rows), bound))

    def _grounded(
        self,
        form: RuleForm,
        solution: Solution,
        predicate: str,
        key: Key,
        at: Instant,
        context: Context,
    ) -> bool:
        """Whether the facts of a solution in the same recursion can be proved without this fact."""
        inside = self._inside(form, solution, predicate, at)
        if not inside:
            return True
        point = self.point(at)
        component = self._components[predicate]
        if context is not None:
            mine = self._cycle(predicate, key, at)
            around = [fact for fact in inside if self._cycle(*fact, at) == mine]
            return not around or self._stand(around, point, context | {(predicate, key)})
        ranks = point.ranks(component, frozenset())
        rank = ranks[predicate, key]
        return all(ranks[fact] < rank for fact in inside)

    def _stand(self, facts: list[Fact], point: PointInTime, without: frozenset[Fact]) -> bool:
        """Whether facts of one recursion can be derived without some others. Raises: TooCyclic."""
        component = self._components[facts[0][0]]
        if not point.ranked(component, without):
            self._count(self._links)
        ranks = point.ranks(component, without)
        return all(fact in ranks for fact in facts)

    def _premises(
        self, form: RuleForm, solution: Solution, node: Fact, at: Instant, context: Context
    ) -> list[Proof]:
        """The proofs of a solution's facts; in a cycle they do not use the facts above."""
        inside = set() if context is None else set(self._inside(form, solution, node[0], at))
        premises: list[Proof] = []
        for atom, key in zip(form.atoms, solution.match.keys, strict=True):
            if atom.is_clock:
                premises.append(self.part(fact_text("clock", key), solution.at, "clock"))
                continue
            fact = (atom.predicate, key)
            above = self._fresh(atom.predicate)
            if (
                context is not None
                and fact in inside
                and self._cycle(*fact, at) == self._cycle(*node, at)
            ):
                above = context | {node}
            premises.append(self.node(*fact, solution.at, above))
        for absent in form.absent:
            text = absence_text(absent, solution.match.bound, self.point(solution.at))
            premises.append(self.part(text, solution.at, "absent"))
        return premises


def absence_text(absent: AbsentForm, bound: Bindings, point: PointInTime) -> str:
    """An atom under `not` with its bound values and `_`."""
    matcher = point.matcher

    def shown(terms: Iterable[Any]) -> str:
        values = [matcher.wanted(term, bound) for term in terms]
        return ", ".join("_" if value is ANY_VALUE else format_value(value) for value in values)

    parts = [f"not {absent.predicate}({shown(absent.terms)})"]
    parts += [f"@{name}({shown(terms)})" for name, terms in absent.lattices]
    return " ".join(parts)


def rule_text(checked: CheckedProgram, number: int) -> str:
    """The text of a rule on one line."""
    span = checked.rules[number - 1].source.span
    lines = checked.program.text.split("\n")[span.line - 1 : span.end_line]
    if not lines:
        return ""
    lines[-1] = lines[-1][: span.end_column - 1]
    lines[0] = lines[0][span.column - 1 :]
    return " ".join(" ".join(lines).split())
