"""Reasons for which a record is absent at an instant: for each rule the furthest match.

Source: language.md 10.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias
from weakref import proxy

from tidemill.arrangement.looks import let_go, with_looks
from tidemill.datalog.allowance import Allowance, match_bytes
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.instants import ticks, usable_clock
from tidemill.datalog.interpreter import (
    Bindings,
    Match,
    Matcher,
    clock_row,
    derived_time,
    head_bindings,
)
from tidemill.datalog.logical.forms import (
    AbsentForm,
    AtomForm,
    Constant,
    RuleForm,
    Term,
    Variable,
    variables_of,
)
from tidemill.datalog.logical.plan import LogicalPlan, logical_plan
from tidemill.datalog.point_in_time import derived
from tidemill.datalog.presence import BEGINNING, END, Instant, Presence, fact_text, normalise
from tidemill.datalog.records import ANY, Record, Value, format_record, format_value
from tidemill.datalog.relevance import relevant_inputs, relevant_patterns
from tidemill.datalog.tables import START, STOP, Key, Row, Table
from tidemill.datalog.values import Failed, equal

Cause: TypeAlias = Literal[
    "no_match", "values_differ", "late", "not_together", "guard_false", "blocked", "not_definite",
    "withheld", "present", "no_tick",
]  # fmt: skip

_FURTHER: Mapping[str, int] = {
    "no_match": 0, "values_differ": 1, "late": 2, "not_together": 3, "guard_false": 4, "blocked": 5,
    "withheld": 6, "no_tick": -1,
}  # fmt: skip

PARTIAL_MATCHES_MAX = 100_000
"""Partial matches of one rule that are looked at before the furthest so far is reported."""


@dataclass(frozen=True, slots=True)
class Reason:
    """The cause for which one rule does not derive the record; `rule` is None where no rule is to
    blame.

    * `atom` counts positive atoms from 1; `sought` is that atom with its values, as far as known.
    * `given` tells whether the atom is of an input.
    * `facts` are the presences of facts that never meet at the instant, or of one input fact.
    * `values` are the variables of the guard that is false.
    * `by` is the fact that blocks, `blocker` the same with the values that it carries.
    * `letter` is the dead letter that would have agreed.
    * `upper` is the frontier of an answer that is not definite yet.
    * `withheld` tells that all holds, but the head's own time is to come, or its own expiry has
      passed.
    * `tick` is the earlier tick from which the record would have come; `no_tick`: there was none.
    """

    rule: int | None
    reason: Cause
    atom: int | None = None
    letter: str | None = None
    facts: tuple[str, ...] = ()
    values: Mapping[str, Value] = field(default_factory=dict)
    by: str | None = None
    blocker: str | None = None
    sought: str | None = None
    given: bool = False
    upper: int | None = None
    tick: str | None = None

    def render(self) -> str:
        """One sentence for people."""
        tick = "" if self.tick is None else f", in the tick {self.tick}"
        subject = "" if self.rule is None else f"rule {self.rule}{tick}: "
        match self.reason:
            case "no_match":
                if self.rule:
                    return f"{subject}nothing is known of {self.sought}{self._next}"
                return (
                    f"present only {', '.join(self.facts)}" if self.facts else "no such input fact"
                )
            case "values_differ":
                return f"{subject}no fact agrees with {self.sought}{self._next}"
            case "late":
                return f"{subject}{self.letter} came late and was refused"
            case "not_together":
                return f"{subject}not present together: {', '.join(self.facts)}"
            case "guard_false":
                shown = ", ".join(f"{k} = {format_value(v)}" for k, v in self.values.items())
                return f"{subject}the guard is false for {shown}"
            case "blocked":
                return f"{subject}blocked by {self.blocker or self.by}"
            case "withheld":
                return f"{subject}its time has not come, or its own expiry has passed"
            case "present":
                return "it is present"
            case "no_tick":
                return f"{subject or ''}no tick was before it"
            case _:
                return f"not yet definite: upper is {self.upper}"

    @property
    def _next(self) -> str:
        """The question to ask next; none about what no rule derives."""
        known = self.sought is not None and not self.given and self.tick is None
        return f"; ask why-not '{self.sought}'" if known else ""


def why_not(
    checked: CheckedProgram,
    inputs: Mapping[str, Sequence[Presence]],
    record: Record,
    at: int,
    *,
    upper: int,
    letters: Sequence[Record] = (),
    allowance: Allowance | None = None,
) -> list[Reason]:
    """For each rule whose head can be the record, why it does not derive it at the instant `at`.

    `inputs` are all presences known below `upper`, `letters` the dead letters. Bind the head to the
    record, take the positive atoms from left to right by values alone, and report the match that
    came furthest. Cost: the evaluation of what fits the arguments of the record, from the
    beginning.
    """
    if at >= upper:
        return [Reason(None, "not_definite", upper=upper)]
    plan = logical_plan(checked)
    search = Search(plan, allowance or Allowance(), inputs, record, at, upper, letters)
    if search.present():
        return [Reason(None, "present")]
    reasons = [
        search.reason(form)
        for form in plan.rules
        if form.head.predicate == record.predicate and form.deductive and search.can_be(form)
    ]
    if reasons:
        return reasons
    return [absent_input(record, letters, inputs.get(record.predicate, ()))]


def absent_input(
    record: Record, letters: Sequence[Record], presences: Sequence[Presence] = ()
) -> Reason:
    """Reason for an absent input fact; `presences` are those of its input at other instants."""
    letter = next((each for each in letters if _is(each, record)), None)
    if letter is not None:
        return Reason(None, "late", letter=format_record(letter))
    known: dict[str, list[tuple[Instant, Instant]]] = {}
    for presence in presences:
        if _is(presence.record, record):
            text = fact_text(record.predicate, (presence.record.time, *presence.record.arguments))
            known.setdefault(text, []).append((presence.start, presence.end))
    facts = (_stretches(text, intervals) for text, intervals in known.items())
    return Reason(None, "no_match", facts=tuple(line for lines in facts for line in lines))


def _is(known: Record, record: Record) -> bool:
    return (
        known.predicate == record.predicate
        and len(known.arguments) == len(record.arguments)
        and _agree(known.arguments, record.arguments)
        and record.time in (None, known.time)
    )


def _agree(values: Iterable[Any], wanted: Iterable[Any]) -> bool:
    """Whether values are those that were asked about, of which some may be left open."""
    return all(b is ANY or equal(a, b) for a, b in zip(values, wanted, strict=True))


class Search:
    """Looks for the furthest match of each rule over everything known below `upper`."""

    def __init__(
        self,
        plan: LogicalPlan,
        allowance: Allowance,
        inputs: Mapping[str, Sequence[Presence]],
        record: Record,
        at: int,
        upper: int,
        letters: Sequence[Record],
    ) -> None:
        self._plan = plan
        self._allowance = allowance
        self._inputs = inputs
        self._record = record
        self._at = at
        self._upper = upper
        self._letters = letters
        self._tables = self._every_fact()
        self._known: dict[str, bool] = {}
        vocabulary = plan.checked.vocabulary
        mine: Search = proxy(self)
        self._matcher = Matcher(lambda name: mine._table(name), vocabulary, upper - 1, allowance)
        self._now = Matcher(lambda name: mine._present(name), vocabulary, at, allowance)
        self._present_tables: dict[str, Table] = {}

    def _every_fact(self) -> Mapping[str, Table]:
        """All facts below `upper` that fit the arguments of the record, with presences."""
        patterns = relevant_patterns(
            self._plan.rules, self._record.predicate, self._record.arguments
        )
        return self._derived(relevant_inputs(self._inputs, patterns), patterns)

    def _derived(
        self, inputs: Mapping[str, Sequence[Presence]], wanted: Collection[str]
    ) -> Mapping[str, Table]:
        return derived(self._plan, inputs, wanted, self._upper, self._allowance)

    def _table(self, predicate: str) -> Table:
        return self._tables.get(predicate) or Table([])

    def _present(self, predicate: str) -> Table:
        """The facts of a predicate at the instant of the question."""
        known = self._present_tables.get(predicate)
        if known is None:
            rows = [
                r for r in with_looks(self._table(predicate).rows) if r[START] <= self._at < r[STOP]
            ]
            known = self._present_tables[predicate] = Table(rows)
        return known

    def present(self) -> bool:
        """Whether the record is there after all."""
        record = self._record
        return any(
            record.time in (None, row[4]) and _agree(row[5:], record.arguments)
            for row in with_looks(self._present(record.predicate).rows)
        )

    def can_be(self, form: RuleForm) -> bool:
        """Whether the head of the rule can be the record."""
        return self._head(form) is not None

    def _head(self, form: RuleForm) -> Bindings | None:
        record = self._record
        if len(form.head.terms) != len(record.arguments):
            return None
        if record.time is None and form.head.time:
            return head_bindings(_without_time(form), record.arguments, None)
        return head_bindings(form, record.arguments, record.time)

    def reason(self, form: RuleForm) -> Reason:
        """The reason of one rule: of its matches, the one that came furthest."""
        bound = self._head(form)
        assert bound is not None
        best: Reason | None = None
        for number, reason in enumerate(self._reasons(form, bound)):
            if best is None or rank(reason) > rank(best):
                best = reason
            if number >= PARTIAL_MATCHES_MAX or best.reason in ("blocked", "withheld"):
                break
        return best if best is not None else Reason(form.number, "withheld")

    def _reasons(
        self, form: RuleForm, known: Bindings, rows: tuple[Row, ...] = ()
    ) -> Iterator[Reason]:
        """One reason for each way in which the positive atoms were tried after those of `rows`."""
        i, total = len(rows), len(form.atoms)
        if i == total:
            yield self._of_match(form, Match(rows, known))
            return
        agreed = False
        for row, further in self._candidates(form, i, known):
            self._allowance.take(0)
            if self._fits(form, further, known, last=i + 1 == total):
                agreed = True
                yield from self._reasons(form, further, (*rows, row))
        if not agreed:
            yield self._unmatched(form, i, known)

    def _candidates(
        self, form: RuleForm, i: int, bound: Bindings
    ) -> Iterator[tuple[Row, Bindings]]:
        """Facts that agree with an atom, present ones first; of a clock its nearest ticks."""
        if form.atoms[i].clock is not None:
            yield from self._ticks(form, i, bound)
            return
        allowance, size = self._allowance, match_bytes(len(bound))
        present: list[tuple[Row, Bindings]] = []
        others: list[tuple[Row, Bindings]] = []
        try:
            for found in self._matcher.candidates(form, i, bound):
                is_present = found[0][START] <= self._at < found[0][STOP]
                (present if is_present else others).append(found)
                allowance.take(size)
            yield from present
            yield from others
        finally:
            allowance.held -= size * (len(present) + len(others))
            let_go(present)
            let_go(others)

    def _ticks(self, form: RuleForm, i: int, bound: Bindings) -> Iterator[tuple[Row, Bindings]]:
        atom = form.atoms[i]
        assert atom.clock is not None
        try:
            offset, period = usable_clock(*(self._matcher.value(t, bound) for t in atom.clock))
        except (Failed, KeyError):
            return
        nearest = [
            *reversed(ticks(offset, period, self._at - 1000 * period, self._at)),  # type: ignore[call-overload]
            *ticks(offset, period, self._at + 1, min(self._upper - 1, self._at + 1000 * period)),
        ]
        for time in nearest:
            row = clock_row(offset, period, time)
            further = self._matcher.agree(form, atom, row, bound)
            if further is not None:
                yield row, further

    def _fits(self, form: RuleForm, bound: Bindings, before: Bindings, last: bool) -> bool:
        """Whether terms of atoms and the head agree as far as they can be computed."""
        equalities = form.conditions[: len(form.conditions) - form.guards]
        for condition in equalities:
            needs = variables_of(condition)
            if needs <= bound.keys() and not needs <= before.keys():
                try:
                    if self._matcher.value(condition, bound) is not True:
                        return False
                except Failed:
                    return False
        return not last or self._head_agrees(form, bound)

    def _head_agrees(self, form: RuleForm, bound: Bindings) -> bool:
        try:
            values = [self._matcher.value(term, bound) for term in form.head.terms]
            times = [self._matcher.value(term, bound) for term in form.head.time]
        except Failed:
            return True
        if not _agree(values, self._record.arguments):
            return False
        wanted = self._record.time
        return wanted is None or not times or wanted == max(t for t in times if type(t) is int)

    def _unmatched(self, form: RuleForm, i: int, bound: Bindings) -> Reason:
        """Why no fact agrees with an atom."""
        atom = form.atoms[i]
        for letter in self._letters:
            if letter.predicate == atom.predicate:
                further = self._matcher.agree(form, atom, _row_of(letter), bound)
                last = i + 1 == len(form.atoms)
                if further is not None and self._fits(form, further, bound, last):
                    return Reason(form.number, "late", i + 1, letter=format_record(letter))
        known = atom.is_clock or self._is_known(atom.predicate)
        sought, derived = self._sought(atom, bound), atom.predicate in self._plan.checked.derived
        reason: Cause = "values_differ" if known else "no_match"
        return Reason(form.number, reason, i + 1, sought=sought, given=not derived)

    def _late_instead(self, form: RuleForm, match: Match) -> Reason | None:
        """The dead letter of the asked time that could stand for one fact of a match."""
        for letter in self._letters:
            for i, atom in enumerate(form.atoms):
                if letter.predicate != atom.predicate or letter.time != self._record.time:
                    continue
                rows = (*match.rows[:i], _row_of(letter), *match.rows[i + 1 :])
                known = self._head(form)
                for each, row in zip(form.atoms, rows, strict=True):
                    if known is not None:
                        known = self._matcher.agree(form, each, row, known)
                if known is not None and self._times_agree(form, Match(rows, known)):
                    return Reason(form.number, "late", i + 1, letter=format_record(letter))
        return None

    def _sought(self, atom: AtomForm, bound: Bindings) -> str:
        """An atom with the values that are known where it is matched, `_` for the others."""

        def value(term: Term) -> Any:
            if isinstance(term, Constant):
                return term.value
            return bound.get(term.name, ANY) if isinstance(term, Variable) else ANY

        terms: list[Any] = [value(term) for term in atom.terms]
        if atom.clock is not None:
            terms = [self._matcher.value(term, bound) for term in atom.clock]
        times = [value(terms[0]) for name, terms in atom.lattices if name == "time"]
        time = next((each for each in times if type(each) is int), None)
        return format_record(Record(atom.predicate, tuple(terms), time))

    def _is_known(self, predicate: str) -> bool:
        """Whether any fact of the predicate is known below upper, whatever its values."""
        if self._table(predicate).rows:
            return True
        if any(p.start < self._upper for p in self._inputs.get(predicate, ())):
            return True
        known = self._known.get(predicate)
        if known is None:
            known = self._known[predicate] = (
                predicate in self._plan.checked.derived and self._is_derived(predicate)
            )
        return known

    def _is_derived(self, predicate: str) -> bool:
        """Whether the program derives any fact of the predicate: at the instant, or ever."""
        now = {
            name: [p for p in found if p.start <= self._at < p.end]
            for name, found in self._inputs.items()
        }
        return any(
            predicate in tables and bool(tables[predicate].rows)
            for tables in (self._derived(inputs, {predicate}) for inputs in (now, self._inputs))
        )

    def _of_match(self, form: RuleForm, match: Match) -> Reason:
        """The reason of a match whose atoms all agree by values."""
        number = form.number
        if not self._times_agree(form, match) and (late := self._late_instead(form, match)):
            return late
        if not all(row[START] <= self._at < row[STOP] for row in match.rows):
            return Reason(number, "not_together", facts=self._presences(form, match))
        for guard in form.conditions[len(form.conditions) - form.guards :]:
            try:
                true = self._matcher.value(guard, match.bound) is True
            except Failed:
                true = False
            if not true:
                names = sorted(variables_of(guard))
                return Reason(number, "guard_false", values={n: match.bound[n] for n in names})
        blocking = self._now.blocker(form, match.bound)
        if blocking is not None:
            absent, row = blocking
            atom = form.absent[absent]
            by = fact_text(atom.predicate, row[4:])
            return Reason(number, "blocked", by=by, blocker=self._carried(by, atom, row))
        if not self._times_agree(form, match):
            last = form.atoms[-1]
            return Reason(
                number, "values_differ", len(form.atoms), sought=self._sought(last, match.bound),
                given=last.predicate not in self._plan.checked.derived,
            )  # fmt: skip
        return Reason(number, "withheld")

    def _carried(self, text: str, atom: AbsentForm, row: Row) -> str:
        """A fact that blocks with the parafacts by which it does."""
        for name, _ in atom.lattices:
            values = None if name == "time" else self._now.parafact(row, name)
            if values is not None:
                text += f" @{name}({', '.join(map(format_value, values))})"
        return text

    def _times_agree(self, form: RuleForm, match: Match) -> bool:
        wanted = self._record.time
        if wanted is None or form.head.aggregates:
            return True
        try:
            return derived_time(form, match, self._matcher) == wanted
        except (Failed, ValueError):
            return False

    def _presences(self, form: RuleForm, match: Match) -> tuple[str, ...]:
        """When each fact of a match is present, all its stretches."""
        lines: list[str] = []
        for atom, row in zip(form.atoms, match.rows, strict=True):
            key: Key = row[4:]
            rows = [row] if atom.is_clock else self._table(atom.predicate).of_key(key)
            text = fact_text(atom.predicate, key)
            lines += _stretches(text, ((each[START], each[STOP]) for each in rows))
        return tuple(dict.fromkeys(lines))


def _row_of(letter: Record) -> Row:
    """A dead letter as it would have been there."""
    expires = END if letter.expires is None else letter.expires
    return (letter.time, expires, expires, (), letter.time, *letter.arguments)


def _stretches(text: str, intervals: Iterable[tuple[Instant, Instant]]) -> list[str]:
    """When a fact is present, a line for each stretch."""
    return [
        f"[{_shown(start)},{'-' if end == END else end}) {text}"
        for start, end in normalise(intervals)
    ]


def _shown(start: Any) -> str:
    return "-inf" if start == BEGINNING else str(start)


def rank(reason: Reason) -> tuple[int, int]:
    """Progress of a match: an atom further beats a better reason at an earlier atom."""
    if reason.atom is not None:
        return (0, reason.atom * 10 + _FURTHER[reason.reason])
    return (_FURTHER[reason.reason], 0)


def _without_time(form: RuleForm) -> RuleForm:
    """The rule as if its head wrote no time: for a question that names none."""
    return replace(form, head=replace(form.head, time=()))
