"""Rules made ready to run over columns: what follows from a rule, its plan and the kind of its
tables is decided once.

A prepared rule is kept from window to window, for tables of which the same is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Protocol, TypeAlias

import numpy as np

from tidemill.arrangement.kernels import I64Array
from tidemill.datalog.columnar.columns import Columns
from tidemill.datalog.columnar.formulas import Formula, Limit, formula, formulas, limit
from tidemill.datalog.columnar.prefixes import Prefix
from tidemill.datalog.columns.column import Column, Unsuited
from tidemill.datalog.evaluation.compiled import CLOCK_TRAITS
from tidemill.datalog.evaluation.joins import Plan, Step
from tidemill.datalog.evaluation.writing import head_expressions
from tidemill.datalog.logical.expressions import Scope, type_of
from tidemill.datalog.logical.forms import (
    AbsentForm,
    AtomForm,
    Call,
    Constant,
    Expression,
    HeadForm,
    RuleForm,
    Term,
    Type,
    Variable,
    Wildcard,
    variables_of,
)
from tidemill.datalog.tables import Traits
from tidemill.datalog.values import FLOAT_EXACT_MAX

_ORDERS = frozenset({"<", "<=", ">", ">=", "==", "!="})
_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "=="}
_WORD_MAX = 1 << 62


class Gathering(Protocol):
    """Matches of a rule, as far as columns are gathered from them."""

    def field(self, atom: int, of: Callable[[Columns], Column]) -> Column:
        """A column of the facts that they have at an atom."""
        ...

    def ticks(self, atom: int) -> I64Array:
        """The instants that they have at an atom that is a clock."""
        ...


Source: TypeAlias = Callable[[Gathering], Column]
"""Gathers a column of the facts that the matches have at some atom."""


@dataclass(frozen=True, slots=True)
class PreparedStep:
    """How one atom is matched: what it is found by, and what else its facts have to be.

    `probes` are positions and what stands there. `between` are the least and the greatest value of
    the plan's range where they are numbers, `limits` what it is computed from; `conditions` those
    that the range does not decide. `clock` are its offset and its period. `tests` compare columns
    with terms known before. `timed`: facts without a time do not match; `expiring`: one without an
    expiry is left to the row engine; `never`: no fact has what the atom asks for.
    """

    plan: Step
    form: AtomForm
    probes: tuple[tuple[int, Formula], ...]
    positions: tuple[int, ...]
    between: tuple[int, int] | None
    limits: tuple[tuple[Limit | None, ...], tuple[Limit | None, ...]]
    conditions: tuple[Formula, ...]
    clock: tuple[Formula, Formula] | None
    tests: tuple[tuple[Source, Formula], ...]
    timed: bool
    expiring: bool
    never: bool


@dataclass(frozen=True, slots=True)
class PreparedHead:
    """The expressions of a head, in the order of its form; `values` are those of its lattices.

    `sure`: none of them can fail, whatever the rows are that the rule was made ready for.
    """

    terms: tuple[Formula, ...]
    time: tuple[Formula, ...]
    expires: tuple[Formula, ...]
    values: tuple[Formula, ...]
    sure: bool


@dataclass(frozen=True, slots=True)
class PreparedRule:
    """A rule with its plan; `sources` say where the values of each variable come from, with the
    atom that has them.

    `timed` and `expiring` are the atoms whose time and expiry are passed on. `kinds` are those of
    the head's arguments, `value_kinds` those of its lattices as far as they have to be floats.
    `prefixes` say of each step whether what is joined then may be what another rule joins.
    """

    form: RuleForm
    plan: Plan
    scope: Scope
    steps: tuple[PreparedStep, ...]
    sources: Mapping[str, tuple[int, Source]]
    absent: tuple[tuple[str, tuple[int, ...], tuple[Formula, ...]], ...]
    timed: tuple[int, ...]
    expiring: tuple[int, ...]
    head: PreparedHead
    kinds: tuple[Type, ...]
    value_kinds: tuple[Type | None, ...]
    widths: tuple[int, ...]
    prefixes: tuple[Prefix | None, ...]


def prepared(
    form: RuleForm,
    plan: Plan,
    scope: Scope,
    of_atoms: Mapping[int, tuple[Traits, frozenset[str]]],
    kinds: tuple[Sequence[Type], Mapping[str, Sequence[Type]]],
    common: tuple[Prefix | None, ...],
    window: tuple[int, int],
) -> PreparedRule:
    """Make a rule ready.

    `of_atoms`: what the facts of each atom carry, and their lattices; `kinds` of arguments and
    lattices of the head; `common`: the steps that another rule may have too; `window`: between
    which instants windows begin. Raises: Unsuited.
    """
    carried = {i: names for i, (_, names) in of_atoms.items()}
    _check_passed(form, carried)
    if form.atoms[plan.steps[0].atom].is_clock:
        raise Unsuited  # a clock comes first
    preparation = _Preparation(form, plan, scope, carried, window)
    steps = tuple(map(preparation.step, plan.steps))
    head = form.head
    traits = [
        CLOCK_TRAITS if atom.is_clock else of_atoms[i][0] for i, atom in enumerate(form.atoms)
    ]
    timed, expiring = _passed(form, traits)
    if any(len(terms) != 1 for _, terms in head.lattices):
        raise Unsuited
    if any(type_of(e, scope.types) is not Type.INT for e in (*head.time, *head.expires)):
        raise Unsuited
    value_kinds = [_value_kind(name, terms[0], kinds[1], scope) for name, terms in head.lattices]
    return PreparedRule(
        form, plan, scope, steps, preparation.sources,
        tuple([_absent(absent, scope) for absent in form.absent]),
        timed, expiring, _head(head, scope),
        tuple(kinds[0]), tuple(value_kinds),
        tuple(3 if atom.is_clock else 1 + len(atom.terms) for atom in form.atoms),
        common,
    )  # fmt: skip


def _value_kind(
    name: str, term: Expression, kinds: Mapping[str, Sequence[Type]], scope: Scope
) -> Type | None:
    """Float for a lattice whose values have to be floats.

    Raises: Unsuited where a sum would be rounded by that.
    """
    if name == "average" or kinds.get(name, (Type.ANY,))[0] is not Type.FLOAT:
        return None
    if name == "sum" and type_of(term, scope.types) is not Type.FLOAT:
        known = scope.bounds_of(term)
        if known is None or max(-known.low, known.high) > FLOAT_EXACT_MAX:
            raise Unsuited
    return Type.FLOAT


def _check_passed(form: RuleForm, carried: Mapping[int, frozenset[str]]) -> None:
    """Raises: Unsuited where a head passes on more than time and expiry."""
    dropped = form.head.suppressed | {name for name, _ in form.head.lattices}
    for i, names in carried.items():
        if not names <= dropped | form.atoms[i].suppressed:
            raise Unsuited


def _conditions(conditions: Sequence[Expression], scope: Scope) -> tuple[Formula, ...]:
    """Conditions in their order, as one where arrays can say all of them: none of those fails."""
    ready = formulas(conditions, scope)
    if len(ready) < 2 or not all(
        each.code is not None and each.kind is Type.BOOL for each in ready
    ):
        return ready
    return (formula(reduce(lambda left, right: Call("&&", (left, right)), conditions), scope),)


def _head(head: HeadForm, scope: Scope) -> PreparedHead:
    return PreparedHead(
        formulas(head.terms, scope), formulas(head.time, scope), formulas(head.expires, scope),
        formulas([terms[0] for _, terms in head.lattices], scope),
        not any(scope.fallible(e) for e in head_expressions(head) if isinstance(e, Call)),
    )  # fmt: skip


def _absent(absent: AbsentForm, scope: Scope) -> tuple[str, tuple[int, ...], tuple[Formula, ...]]:
    if not absent.by_columns:
        raise Unsuited
    columns = absent.columns()
    values = formulas([value for _, value in columns], scope)
    return absent.predicate, tuple(at for at, _ in columns), values


def _passed(form: RuleForm, traits: Sequence[Traits]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The atoms whose time the head passes on, and those whose expiry."""
    timed, expiring = [], []
    for i, atom in enumerate(form.atoms):
        dropped = form.head.suppressed | atom.suppressed
        if traits[i].timed and "time" not in dropped:
            timed.append(i)
        if traits[i].expiring and not atom.is_clock and "expires" not in dropped:
            expiring.append(i)
    return tuple(timed), tuple(expiring)


class _Preparation:
    """Goes through the steps of a plan as a run does, and learns where variables come from."""

    def __init__(
        self,
        form: RuleForm,
        plan: Plan,
        scope: Scope,
        carried: Mapping[int, frozenset[str]],
        window: tuple[int, int],
    ) -> None:
        self.sources: dict[str, tuple[int, Source]] = {}
        self._form = form
        self._scope = scope
        self._carried = carried
        self._first = plan.steps[0]
        self._window = window

    def step(self, step: Step) -> PreparedStep:
        """The next step. Raises: Unsuited."""
        atom = self._form.atoms[step.atom]
        conditions = tuple(self._form.conditions[i] for i in step.conditions)
        if atom.is_clock:
            tests = tuple(self._ticks(step.atom, atom))
            return self._ready(step, atom, None, conditions, tests, (False, False, False))
        between = _numbers(step) if step is self._first else None
        name = self._named(step) if between is not None else None
        if between is not None and name is not None and self._scope.types[name] is Type.INT:
            conditions = tuple(c for c in conditions if not _implied(c, name, between))
        covered = {probe.position for probe in step.match_probes}
        timed = expiring = never = False
        terms: list[tuple[Term, Source]] = []
        for position, term in enumerate(atom.terms, 1):
            if position not in covered:
                terms.append((term, self._key(step.atom, position, term)))
        for name, of in atom.lattices:
            if name == "time":
                if 0 in covered:
                    covered.discard(0)
                    continue
                timed = True
                terms.append((of[0], self._made(step.atom, of[0], _time)))
            elif name == "expires":
                if not all(isinstance(term, Wildcard) for term in of):
                    expiring = True
                    terms.append((of[0], self._made(step.atom, of[0], _expiry)))
            elif len(of) != 1:
                raise Unsuited
            elif name in self._carried[step.atom]:
                terms.append((of[0], self._made(step.atom, of[0], _lattice(name))))
            else:
                never = True
        tests = tuple(self._tests(step.atom, terms))
        if never and any(name not in self.sources for name in atom.variables()):
            raise Unsuited
        return self._ready(step, atom, between, conditions, tests, (timed, expiring, never))

    def _ready(
        self,
        step: Step,
        atom: AtomForm,
        between: tuple[int, int] | None,
        conditions: Sequence[Expression],
        tests: tuple[tuple[Source, Formula], ...],
        asks: tuple[bool, bool, bool],
    ) -> PreparedStep:
        scope, limits = self._scope, step.limits
        low, high = [
            tuple([limit(source, scope, self._window) for source in sources])
            for sources in (limits.low, limits.high)
        ]
        probes = tuple([(probe.position, formula(probe.value, scope)) for probe in step.probes])
        clock = None
        if atom.clock is not None:
            clock = formula(atom.clock[0], scope), formula(atom.clock[1], scope)
        return PreparedStep(
            step, atom, probes, step.positions, between, (low, high),
            _conditions(conditions, scope), clock, tests, *asks,
        )  # fmt: skip

    def _tests(
        self, atom: int, terms: Sequence[tuple[Term, Source]]
    ) -> Iterator[tuple[Source, Formula]]:
        """Bind each term, or compare it if it is known."""
        for term, source in terms:
            if isinstance(term, Variable) and term.name not in self.sources:
                self.sources[term.name] = atom, source
            elif not isinstance(term, Wildcard):
                yield source, formula(term, self._scope)

    def _ticks(self, i: int, atom: AtomForm) -> Iterator[tuple[Source, Formula]]:
        for name, of in atom.lattices:
            if name == "time":
                yield from self._tests(i, [(of[0], lambda m: Column(Type.INT, m.ticks(i)))])
            elif not all(isinstance(term, Wildcard) for term in of):
                raise Unsuited

    def _named(self, step: Step) -> str | None:
        """The variable at the column of the step's range."""
        for name in self._form.atoms[step.atom].variables():
            if step.range_column in _positions(self._form.atoms[step.atom], name):
                return name
        return None

    def _key(self, atom: int, position: int, term: Term) -> Source:
        return self._made(atom, term, lambda columns: columns.arguments[position - 1])

    def _made(self, atom: int, term: Term, of: Callable[[Columns], Column]) -> Source:
        widens = isinstance(term, Variable) and self._scope.types.get(term.name) is Type.FLOAT
        if not widens:
            return lambda matching: matching.field(atom, of)

        def widened(matching: Gathering) -> Column:
            column: Column = matching.field(atom, of)
            if column.kind is not Type.INT:
                return column
            return Column(Type.FLOAT, column.values.astype(np.float64), column.nulls)

        return widened


def _time(columns: Columns) -> Column:
    return Column(Type.INT, columns.time.values)


def _expiry(columns: Columns) -> Column:
    return Column(Type.INT, columns.expires)


def _lattice(name: str) -> Callable[[Columns], Column]:
    return lambda columns: columns.lattices[name]


def _positions(atom: AtomForm, name: str) -> list[int]:
    """The columns of the key at which a variable stands."""
    found = [at for at, term in enumerate(atom.terms, 1) if term == Variable(name)]
    if any(of == "time" and terms[0] == Variable(name) for of, terms in atom.lattices):
        found.insert(0, 0)
    return found


def _numbers(step: Step) -> tuple[int, int] | None:
    """The limits of a range where they are numbers that words hold, None where they are not."""
    if step.range_column is None:
        return None
    least, greatest = -_WORD_MAX, _WORD_MAX
    for sources, low in ((step.limits.low, True), (step.limits.high, False)):
        for source in sources:
            code = compile(source, "<limit>", "eval")
            if code.co_names:
                return None
            value: Any = eval(code, {}, {})  # our own text, numbers alone
            if not -_WORD_MAX < value < _WORD_MAX:
                return None
            least, greatest = (
                (max(least, value), greatest) if low else (least, min(greatest, value))
            )
    low_end, high_end = -(1 << 63) + 1, (1 << 63) - 2
    return (
        least if step.limits.low else low_end,
        greatest if step.limits.high else high_end,
    )


def _implied(condition: Expression, name: str, between: tuple[int, int]) -> bool:
    """Whether a condition says of a whole number no more than that it lies between two others."""
    if not isinstance(condition, Call) or condition.name not in _MIRRORED:
        return False
    sign, (left, right) = condition.name, condition.arguments
    if isinstance(left, Constant):
        sign, left, right = _MIRRORED[sign], right, left
    if left != Variable(name) or not isinstance(right, Constant) or type(right.value) is not int:
        return False
    (low, high), number = between, right.value
    above = low > number if sign == ">" else low >= number
    below = high < number if sign == "<" else high <= number
    return {">": above, ">=": above, "<": below, "<=": below, "==": low >= number >= high}[sign]


def calculated(form: RuleForm) -> frozenset[str]:
    """The variables whose ranges a plan depends on: all that are computed with, or bound others."""
    if any(atom.is_clock for atom in form.atoms):
        return frozenset(form.types)
    found: set[str] = set()
    for condition in form.conditions:
        if not _compares(condition):
            found |= variables_of(condition)
    head = form.head
    for expression in (*head.time, *head.expires, *head_expressions(head)):
        if isinstance(expression, Call) or expression in (*head.time, *head.expires):
            found |= variables_of(expression)
    for absent in form.absent:
        for value in absent.expressions():
            if isinstance(value, Call):
                found |= variables_of(value)
    return frozenset(found)


def _compares(condition: Expression) -> bool:
    """Whether a condition compares a variable with a constant: it never fails, and limits by that
    constant.
    """
    if not isinstance(condition, Call) or condition.name not in _ORDERS:
        return False
    return {type(side) for side in condition.arguments} == {Variable, Constant}


def weighed(form: RuleForm) -> tuple[tuple[tuple[int, ...], bool], ...]:
    """For each atom the columns of its key whose ranges matter, and whether the range of its
    expiries does.
    """
    names = calculated(form)
    found = []
    for atom in form.atoms:
        positions = sorted({at for name in names for at in _positions(atom, name)})
        expiries = any(
            of == "expires" and isinstance(term, Variable) and term.name in names
            for of, terms in atom.lattices
            for term in terms
        )
        found.append((tuple(positions), expiries))
    return tuple(found)


__all__ = ["PreparedHead", "PreparedRule", "PreparedStep", "Source", "prepared", "weighed"]
