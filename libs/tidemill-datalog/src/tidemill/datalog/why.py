"""Why a record is present at an instant: a proof down to inputs, for every kind of rule and any depth.

Nothing is recorded while views are maintained: the facts of the instant are evaluated again, only those that
the record can depend on. A solution that outlived its facts is proved at the instant at which it was
established. The proof is built from the top with a list of open facts, so depth is bounded by memory alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.demand import demanded, matching_inputs
from tidemill.datalog.evaluation.engine import Engine
from tidemill.datalog.evaluation.failures import fact_text
from tidemill.datalog.evaluation.forms import AbsentForm, RuleForm
from tidemill.datalog.evaluation.tables import Key, Row
from tidemill.datalog.matching import (
    WILD,
    Bindings,
    Match,
    clock_row,
    derived_time,
    derives,
    head_bindings,
)
from tidemill.datalog.moments import History, Moment, RecordedHistory
from tidemill.datalog.presence import BEGINNING, Instant, Presence
from tidemill.datalog.proofs import Proof
from tidemill.datalog.records import Record, format_value
from tidemill.datalog.values import INT_MIN, Failed, equal

Fact: TypeAlias = "tuple[str, Key]"
Context: TypeAlias = "frozenset[Fact] | None"

EXACT_NODES_MAX = 5_000
"""Above this many facts of recursive groups a proof keeps to solutions of earlier rounds."""


@dataclass(frozen=True, slots=True)
class _Solution:
    """One way to derive a fact: the facts of a match at the instant at which they met."""

    at: Instant
    match: Match


def why(
    checked: CheckedProgram,
    inputs: Mapping[str, Sequence[Presence]],
    record: Record,
    at: int,
    *,
    engine: Engine | None = None,
) -> Proof | None:
    """A proof that the record is present at the instant `at`; None if it is not.

    `inputs` are all presences up to `at`; only facts that the record can depend on are evaluated. The
    record is a fact, with its time where facts differ by it; expiry and parafacts are not compared.
    Cost: one look at the inputs, then the evaluation of what fits the arguments of the record, at the
    instants of the proof; from the beginning on only for rules whose solutions outlive their facts.
    """
    engine = engine or Engine(checked)
    patterns = demanded(engine.forms, record.predicate, record.arguments)
    relevant = matching_inputs(inputs, patterns)
    history = RecordedHistory(engine, relevant, at + 1, set(patterns))
    return explain(engine, history, record, at, set(patterns))


def explain(
    engine: Engine, history: History, record: Record, at: int, only: Collection[str] | None = None
) -> Proof | None:
    """As `why`, with facts and states from a history that can be asked for any instant."""
    if only is None:
        only = set(demanded(engine.forms, record.predicate, record.arguments))
    builder = _Builder(engine, history, only)
    key = builder.key_of(record, at)
    return None if key is None else builder.build(record.predicate, key, at)


class _Builder:
    def __init__(self, engine: Engine, history: History, only: Collection[str]) -> None:
        self._engine = engine
        self._history = history
        self._only = only
        self._moments: dict[Instant, Moment] = {}
        self._nodes: dict[tuple[str, Key, Instant, Context], Proof] = {}
        self._open: list[tuple[Proof, str, Key, Instant, Context]] = []
        self._components = {
            name: component for component in engine.checked.components for name in component
        }
        self._forms: dict[str, list[RuleForm]] = {}
        for form in engine.forms:
            if form.deductive:
                self._forms.setdefault(form.head.predicate, []).append(form)
        self._grouping = {
            component
            for component in engine.checked.components
            if any(form.head.aggregates for name in component for form in self._forms.get(name, ()))
        }

    def moment(self, at: Instant) -> Moment:
        """The facts at an instant; evaluated once."""
        known = self._moments.get(at)
        if known is None:
            known = Moment.of(self._engine, self._history, at, self._only)
            self._moments[at] = known
        return known

    def key_of(self, record: Record, at: int) -> Key | None:
        """The fact that the record means: with its time, or else timeless, or the latest."""
        found = [
            row[4:]
            for row in self.moment(at).table(record.predicate).rows
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
        root = self._node(predicate, key, at, self._fresh(predicate))
        while self._open:
            self._expand(*self._open.pop())
        return root

    def _fresh(self, predicate: str) -> Context:
        """The context of a fact that is entered from outside its recursion."""
        component = self._components.get(predicate)
        exact = component in self._grouping and predicate in self._engine.checked.recursive
        return frozenset() if exact and len(self._nodes) < EXACT_NODES_MAX else None

    def _node(self, predicate: str, key: Key, at: Instant, context: Context) -> Proof:
        known = self._nodes.get((predicate, key, at, context))
        if known is None:
            record = self.moment(at).record(predicate, key)
            known = Proof(fact_text(predicate, key), at, "derived", record)
            self._nodes[predicate, key, at, context] = known
            self._open.append((known, predicate, key, at, context))
        return known

    def _expand(self, node: Proof, predicate: str, key: Key, at: Instant, context: Context) -> None:
        """Find the solutions of one fact and open the facts below them."""
        moment = self.moment(at)
        if moment.is_given(predicate, key):
            node.kind = "input"
            return
        for form in self._forms.get(predicate, ()):
            solutions = self._solutions(form, key, moment)
            if not form.has_body and solutions:
                node.kind, node.rule = "stated", form.number
                return
            usable = [s for s in solutions if self._grounded(form, s, predicate, key, at, context)]
            if usable:
                node.rule = form.number
                node.rule_text = rule_text(self._engine.checked, form.number)
                below = None if context is None else context | {(predicate, key)}
                if not form.head.aggregates:
                    usable = usable[:1]
                node.solutions = [
                    self._premises(form, solution, predicate, at, below) for solution in usable
                ]
                return
        raise AssertionError(f"no derivation of {node.text} at {at}")

    def _solutions(self, form: RuleForm, key: Key, moment: Moment) -> list[_Solution]:
        """The solutions of a rule that derive the fact at the instant; all of a group, or none."""
        if form.lingers or form.outlives:
            found = list(self._living(form, key, moment))
        else:
            found = self._matching(form, key, moment)
        if form.head.aggregates and not form.head.time and found:
            times = [derived_time(form, s.match, moment.matcher) for s in found]
            latest = max((time for time in times if time is not None), default=None)
            return found if latest == key[0] else []
        return found

    def _matching(self, form: RuleForm, key: Key, moment: Moment) -> list[_Solution]:
        bound = head_bindings(form, key[1:], key[0])
        if bound is None:
            return []
        matcher = moment.matcher
        found = []
        for match in matcher.matches(form, bound):
            if not derives(form, match, matcher, key[1:]):
                continue
            try:
                time = derived_time(form, match, matcher)
            except (Failed, ValueError):
                continue
            grouped = form.head.aggregates and not form.head.time
            if (grouped or time == key[0]) and (not form.head.time or key[0] <= moment.at):
                found.append(_Solution(moment.at, match))
        return found

    def _living(self, form: RuleForm, key: Key, moment: Moment) -> Iterable[_Solution]:
        """Solutions that outlive facts, each at the instant at which its facts were all present."""
        grouped = form.head.aggregates and not form.head.time
        if form.outlives:
            for solution, since in moment.established(form):
                if solution.arguments == key[1:] and (grouped or solution.time == key[0]):
                    keys = solution.identity[1]
                    yield self._recalled(form, keys, self._met(form, keys, since))
            return
        for lingering, time, arguments, since in moment.lingering(form):
            if form.head.time and (time is None or time > moment.at):
                continue
            if arguments == key[1:] and (grouped or time == key[0]):
                yield self._recalled(form, lingering.keys, since)

    def _met(self, form: RuleForm, keys: tuple[Key, ...], at: Instant) -> Instant:
        """When the facts of an established solution were all present: before, if some could leave."""
        if form.lingers:
            for lingering, _, _, since in self.moment(at).lingering(form):
                if lingering.keys == keys:
                    return since
        return at

    def _recalled(self, form: RuleForm, keys: tuple[Key, ...], at: Instant) -> _Solution:
        """The match of known facts at an instant."""
        at = INT_MIN if at == BEGINNING else int(at)
        moment = self.moment(at)
        rows: list[Row] = []
        bound: Bindings = {}
        matcher = moment.matcher
        for atom, key in zip(form.atoms, keys, strict=True):
            if atom.is_clock:
                row = clock_row(key[1], key[2], key[0])
            else:
                row = moment.table(atom.predicate).of_key(key)[0]
            rows.append(row)
            bound = matcher.agree(form, atom, row, bound) or bound
        return _Solution(at, Match(tuple(rows), bound))

    def _grounded(
        self,
        form: RuleForm,
        solution: _Solution,
        predicate: str,
        key: Key,
        at: Instant,
        context: Context,
    ) -> bool:
        """Whether the facts of a solution in the same recursion can be proved without this fact."""
        if solution.at != at or predicate not in self._engine.checked.recursive:
            return True
        component = self._components[predicate]
        inside = [
            (atom.predicate, each)
            for atom, each in zip(form.atoms, solution.match.keys, strict=True)
            if atom.predicate in component and not atom.is_clock
        ]
        moment = self.moment(at)
        if context is not None:
            ranks = moment.ranks(component, context | {(predicate, key)})
            return all(fact in ranks for fact in inside)
        ranks = moment.ranks(component, frozenset())
        mine = ranks[predicate, key]
        return all(ranks[fact] < mine for fact in inside)

    def _premises(
        self, form: RuleForm, solution: _Solution, predicate: str, at: Instant, below: Context
    ) -> list[Proof]:
        component = self._components[predicate]
        premises: list[Proof] = []
        for atom, key in zip(form.atoms, solution.match.keys, strict=True):
            if atom.is_clock:
                premises.append(Proof(fact_text("clock", key), solution.at, "clock"))
                continue
            same = atom.predicate in component and solution.at == at
            context = below if same else self._fresh(atom.predicate)
            premises.append(self._node(atom.predicate, key, solution.at, context))
        for absent in form.absent:
            text = absence_text(absent, solution.match.bound, self.moment(solution.at))
            premises.append(Proof(text, solution.at, "absent"))
        return premises


def absence_text(absent: AbsentForm, bound: Bindings, moment: Moment) -> str:
    """An atom under `not` with its bound values and `_`."""
    matcher = moment.matcher

    def shown(terms: Iterable[Any]) -> str:
        values = [matcher.wanted(term, bound) for term in terms]
        return ", ".join("_" if value is WILD else format_value(value) for value in values)

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
