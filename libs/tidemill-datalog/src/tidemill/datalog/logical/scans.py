"""Scans: the part of an input that can matter to a program, as tests on rows and used columns.

A row matters to no derivation and no error if it fits no atom, or every rule drops it by a guard
over it alone. A reader of the collection may leave it out: every answer stays as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.functions import FUNCTIONS
from tidemill.datalog.lattices import LATTICES, TALLIES
from tidemill.datalog.logical.expressions import TypeEnvironment
from tidemill.datalog.logical.forms import (
    AbsentForm,
    AtomForm,
    Call,
    Constant,
    Expression,
    RuleForm,
    Type,
    Variable,
    Wildcard,
    variables_of,
)
from tidemill.datalog.values import (
    FLOAT_EXACT_MAX,
    INT_MAX,
    INT_MIN,
    Value,
    equal,
    greater,
    greater_equal,
    less,
    less_equal,
)

TIME_AT = 0
"""The position of the event time; arguments follow from 1 on."""

_SIGNS = {"==": equal, "<": less, "<=": less_equal, ">": greater, ">=": greater_equal}
_TURNED = {"==": "==", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_TESTED = frozenset({"int", "float", "text", "bool"})


@dataclass(frozen=True, slots=True)
class Comparison:
    """The value at a position compared with a constant: `==`, `<`, `<=`, `>` or `>=`."""

    position: int
    sign: str
    value: Value

    def holds(self, row: Sequence[Value]) -> bool:
        """Whether a row, the time first, passes."""
        return _SIGNS[self.sign](row[self.position], self.value) is True


@dataclass(frozen=True, slots=True)
class AllOf:
    """Every one of several tests."""

    tests: tuple[Test, ...]

    def holds(self, row: Sequence[Value]) -> bool:
        """Whether a row, the time first, passes."""
        return all(test.holds(row) for test in self.tests)


@dataclass(frozen=True, slots=True)
class AnyOf:
    """At least one of several tests."""

    tests: tuple[Test, ...]

    def holds(self, row: Sequence[Value]) -> bool:
        """Whether a row, the time first, passes."""
        return any(test.holds(row) for test in self.tests)


Test: TypeAlias = "Comparison | AllOf | AnyOf"


@dataclass(frozen=True, slots=True)
class Scan:
    """Part of an input that matters: rows that pass `wanted` (None: all), of them `columns`.

    Values of other columns are never looked at, and rows that differ only in them count as one.
    """

    predicate: str
    columns: tuple[int, ...]
    wanted: Test | None = None

    @property
    def nameless(self) -> Scan:
        """The scan under no name: equal for programs that read a collection alike."""
        return replace(self, predicate="")


def scans_of(checked: CheckedProgram, rules: Iterable[RuleForm]) -> dict[str, Scan]:
    """The scan of every input that some rule reads.

    Programs with ticks count rows: they read all of them.
    """
    tests: dict[str, list[Test | None]] = {}
    columns: dict[str, set[int]] = {}
    derived = set(checked.derived)
    for rule in rules:
        atoms: list[AtomForm | AbsentForm] = [*rule.atoms, *rule.absent]
        atoms = [each for each in atoms if not each.is_clock and each.predicate not in derived]
        if atoms:
            readings = _Readings(checked, rule)
            for atom in atoms:
                tests.setdefault(atom.predicate, []).append(readings.test(atom))
                columns.setdefault(atom.predicate, set()).update(readings.columns(atom))
    found = {}
    for name, mine in tests.items():
        every = tuple(range(1, len(checked.columns[name]) + 1))
        if checked.ticked:
            found[name] = Scan(name, every)
        else:
            found[name] = Scan(name, tuple(sorted(columns[name])), any_of(mine))
    return found


def any_of(tests: Iterable[Test | None]) -> Test | None:
    """A test that passes where one of these does; None passes everywhere."""
    known: dict[Test, None] = {}
    for test in tests:
        if test is None:
            return None
        known.update(dict.fromkeys(test.tests if isinstance(test, AnyOf) else (test,)))
    return AnyOf(tuple(known)) if len(known) != 1 else next(iter(known))


def all_of(tests: Iterable[Test | None]) -> Test | None:
    """A test that passes where all of these do; None passes everywhere."""
    known: dict[Test, None] = {}
    for test in tests:
        if test is not None:
            known.update(dict.fromkeys(test.tests if isinstance(test, AllOf) else (test,)))
    if not known:
        return None
    return AllOf(tuple(known)) if len(known) != 1 else next(iter(known))


class _Readings:
    """Reads of the rows of the atoms of one rule."""

    def __init__(self, checked: CheckedProgram, rule: RuleForm) -> None:
        self._checked = checked
        self._rule = rule
        self._scope = TypeEnvironment(rule.types, {}, FUNCTIONS, LATTICES)
        self._conditions = self._pushable()
        self._whole = self._counts_rows()
        self._used = self._uses()

    def _pushable(self) -> tuple[Expression, ...]:
        """The conditions before the first that may fail: they drop nothing that is an error."""
        if any(atom.clock is not None and not _ticks(atom.clock) for atom in self._rule.atoms):
            return ()
        found = []
        for condition in self._rule.conditions:
            if self._fallible(condition):
                break
            found.append(condition)
        return tuple(found)

    def _fallible(self, expression: Expression) -> bool:
        if not isinstance(expression, Call):
            return False
        return not _known_functions(expression) or self._scope.fallible(expression)

    def _counts_rows(self) -> bool:
        """Whether a count, an end or an error tells rows apart by columns nobody names."""
        rule = self._rule
        if rule.remembers or not rule.deductive:
            return True
        if any(name in TALLIES for name, _ in rule.head.lattices) or self._sees_ends():
            return True
        clocks = [argument for atom in rule.atoms for argument in atom.clock or ()]
        if any(atom.clock is not None and not _ticks(atom.clock) for atom in rule.atoms):
            return True
        expressions: list[Expression] = [*rule.conditions, *_of_head(rule), *clocks]
        expressions += [term for absent in rule.absent for term in absent.expressions()]
        return any(self._fallible(expression) for expression in expressions)

    def _sees_ends(self) -> bool:
        """Whether the end of each single row matters: that of merged rows is the last one.

        A group ends with the first of its rows, and an atom may name the end or a lattice of a row.
        """
        rule, inputs = self._rule, self._checked.inputs
        atoms: list[AtomForm | AbsentForm] = [*rule.atoms, *rule.absent]
        if any(name != "time" for atom in atoms for name, _ in atom.lattices):
            return True
        read = [inputs[atom.predicate] for atom in rule.atoms if atom.predicate in inputs]
        return rule.head.aggregates and any(each.kind == "events" for each in read)

    def _uses(self) -> Mapping[str, int]:
        """Number of occurrences of each variable of the rule."""
        rule = self._rule
        used = Counter(name for atom in rule.atoms for name in atom.variables())
        expressions: list[Expression] = [*rule.conditions, *_of_head(rule)]
        expressions += [argument for atom in rule.atoms for argument in atom.clock or ()]
        expressions += [term for absent in rule.absent for term in absent.expressions()]
        for expression in expressions:
            used.update(variables_of(expression))
        return used

    def columns(self, atom: AtomForm | AbsentForm) -> set[int]:
        """The arguments of the atom that the rule looks at."""
        if self._whole:
            return set(range(1, len(atom.terms) + 1))
        return {at for at, term in enumerate(atom.terms, 1) if self._looks(term)}

    def _looks(self, term: Expression | Wildcard) -> bool:
        if isinstance(term, Variable):
            return self._used.get(term.name, 0) > 1
        return not isinstance(term, Wildcard)

    def test(self, atom: AtomForm | AbsentForm) -> Test | None:
        """The test of every row that the atom can match in a solution."""
        kinds = [kind for _, kind in self._checked.columns[atom.predicate]]
        places: dict[str, tuple[int, str]] = {}
        tests: list[Test | None] = []
        times = [(TIME_AT, terms[0]) for name, terms in atom.lattices if name == "time"]
        for at, term in [*times, *enumerate(atom.terms, 1)]:
            kind = "int" if at == TIME_AT else kinds[at - 1]
            if kind not in _TESTED:
                continue
            if isinstance(term, Constant):
                tests.append(compared(at, kind, "==", term.value))
            elif isinstance(term, Variable):
                places.setdefault(term.name, (at, kind))
        tests += [self._of_condition(condition, places) for condition in self._conditions]
        return all_of(tests)

    def _of_condition(
        self, condition: Expression, places: Mapping[str, tuple[int, str]]
    ) -> Test | None:
        """A test that passes if the condition can be true; None if it depends on no column."""
        if not isinstance(condition, Call):
            return None
        if condition.name in ("&&", "||"):
            parts = [self._of_condition(part, places) for part in condition.arguments]
            return all_of(parts) if condition.name == "&&" else any_of(parts)
        if condition.name not in _SIGNS:
            return None
        left, right = condition.arguments
        if isinstance(left, Variable) and isinstance(right, Constant):
            variable, sign, value = left, condition.name, right.value
        elif isinstance(right, Variable) and isinstance(left, Constant):
            variable, sign, value = right, _TURNED[condition.name], left.value
        else:
            return None
        place = places.get(variable.name)
        if place is None or self._rule.types.get(variable.name) is Type.ANY:
            return None
        return compared(*place, sign, value)


def _of_head(rule: RuleForm) -> list[Expression]:
    head = rule.head
    return [
        *head.terms, *head.time, *head.expires, *(term for _, of in head.lattices for term in of)
    ]  # fmt: skip


def _ticks(clock: tuple[Expression, Expression]) -> bool:
    """Whether a clock can be used whatever the rows are."""
    whole = all(isinstance(each, Constant) and type(each.value) is int for each in clock)
    return whole and clock[1].value > 0  # type: ignore[union-attr,operator]  # a constant whole number


def _known_functions(expression: Expression) -> bool:
    """Whether no function of a host is called, of which nothing is known."""
    if not isinstance(expression, Call):
        return True
    known = not expression.name.isidentifier() or expression.name in (*FUNCTIONS, "neg")
    return known and all(map(_known_functions, expression.arguments))


def compared(position: int, kind: str, sign: str, value: Value) -> Test | None:
    """A comparison with a value of the very type of the column, so that stores compare as the
    language does.

    None for any other value, of a column of a `kind`: "int", "float", "text" or "bool".
    """
    if value is None:
        return Comparison(position, sign, None) if sign == "==" else None
    if kind == "int" and type(value) is int:
        return Comparison(position, sign, value) if INT_MIN <= value <= INT_MAX else None
    if kind == "float" and type(value) in (int, float):
        if type(value) is int and abs(value) > FLOAT_EXACT_MAX:
            return None
        return Comparison(position, sign, float(value))  # type: ignore[arg-type]  # a number
    if (kind == "text" and type(value) is str) or (
        kind == "bool" and type(value) is bool and sign == "=="
    ):
        return Comparison(position, sign, value)
    return None
