"""Joins that several rules of a program have in common: what they are, who has them, and what
sharing one saves.

A *common join* is a set of atoms of a body that share variables, with the guards on them that
cannot fail; two rules have it if theirs are the same up to the names of variables. It keeps whole
facts, so each solution of a rule is one solution of it and something else: aggregates see it once,
and its presence is that of its facts together. What it reads is complete before its rules run, and
nothing in it can fail, so that no answer, error or reason depends on whether it is shared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations, product
from math import factorial, prod
from typing import Any, Literal, Protocol, TypeAlias

from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.logical.forms import (
    AtomForm,
    Call,
    Constant,
    Expression,
    RuleForm,
    Term,
    Type,
    Variable,
    Wildcard,
    variables_of,
)
from tidemill.datalog.logical.ranges import bounds_of

Sharing: TypeAlias = Literal["auto", "all", "none"]
"""Which common joins are done once: those that save something, all of them, or none."""

_ATOMS_MAX = 6
_ORDERS_MAX = 24
_VARIANTS_MAX = 16
_ASKED_US, _KEPT_US, _SAVED_US = 6.0, 12.0, 6.0
"""A change that a rule looks at in vain; a solution that is kept for others; one that a rule need
not keep itself.
"""
_EQUAL_SHARE, _ORDER_SHARE = 0.1, 1 / 3
"""What share of the solutions a guard leaves that says `==`, and one that says `<`: nothing
measures it beforehand.
"""
_SWAPPED = {">": "<", ">=": "<="}
_UNKNOWN_ROWS = 1_000.0


class Measured(Protocol):
    """What is known of the facts of predicates before a program runs."""

    def rows(self, predicate: str) -> float | None:
        """How many there are, None where nobody has counted."""
        ...

    def distinct(self, predicate: str, position: int) -> float:
        """How many values a column has, of a predicate that was counted; position 0 is the time."""
        ...


@dataclass(frozen=True, slots=True)
class Use:
    """A rule that has a common join: the place in its body of each atom of the join."""

    form: RuleForm
    places: tuple[int, ...]
    wanted: float = 1.0
    """What share of the solutions its further guards leave, about."""

    @property
    def whole(self) -> bool:
        """Whether the rule has no positive atoms beside it."""
        return len(self.places) == len(self.form.atoms)


@dataclass(frozen=True, slots=True)
class CommonJoin:
    """Atoms and guards as the first of the rules that have them writes them, and these rules."""

    atoms: tuple[AtomForm, ...]
    conditions: tuple[Expression, ...]
    types: dict[str, Type]
    uses: tuple[Use, ...]

    @property
    def rules(self) -> list[int]:
        """The numbers of the rules."""
        return [use.form.number for use in self.uses]


@dataclass(frozen=True, slots=True)
class Judged:
    """A common join, how many solutions it has, about, and what sharing it saves for the sizes at
    hand, in µs.
    """

    join: CommonJoin
    rows: float
    saved_us: float


def common_joins(
    checked: CheckedProgram, forms: Iterable[RuleForm], sharing: Sharing, sizes: Measured
) -> tuple[list[Judged], list[Judged]]:
    """The common joins of rules that are done once, and those that would save nothing.

    A rule has at most one. `forms` are the rules that may have any: not those whose solutions are
    remembered by their facts. Cost: O(text), and O(orders of atoms of one predicate) for each
    subset of a body that two rules have.
    """
    if sharing == "none":
        return [], []
    candidates = [
        judged(found, sizes)
        for known in _occurrences(checked, sorted(forms, key=_number))
        for found in _variants(known)
    ]
    candidates.sort(key=lambda each: (-each.saved_us, -len(each.join.atoms), each.join.rules))
    taken: set[int] = set()
    done: list[Judged] = []
    left: list[Judged] = []
    for each in candidates:
        uses = tuple(use for use in each.join.uses if use.form.number not in taken)
        if len(uses) < 2:
            continue
        mine = judged(_with_uses(each.join, uses), sizes)
        if mine.saved_us > 0 or sharing == "all":
            done.append(mine)
            taken.update(mine.join.rules)
        else:
            left.append(mine)
    return done, _largest(left, taken)


def _number(form: RuleForm) -> int:
    return form.number


def _largest(left: Sequence[Judged], taken: set[int]) -> list[Judged]:
    """Of the joins that save nothing the one with the most atoms for each set of rules."""
    found: dict[tuple[int, ...], Judged] = {}
    for each in left:
        rules = tuple(each.join.rules)
        known = found.get(rules)
        larger = known is None or len(each.join.atoms) > len(known.join.atoms)
        if larger and taken.isdisjoint(rules):
            found[rules] = each
    return list(found.values())


def judged(join: CommonJoin, sizes: Measured) -> Judged:
    """What sharing a join saves.

    Once shared, a change of one of its facts is looked at once, and by its rules only where it has
    solutions; rules without further atoms need not keep a match. The price is that each of its
    solutions is kept.
    """
    sized = [_rows(atom.predicate, sizes) for atom in join.atoms]
    rows = _solutions(join, sized, sizes)
    rules = len(join.uses)
    asked = sum(size * (rules - 1 - rules * min(1.0, rows / size)) for size in sized)
    kept = sum(use.wanted for use in join.uses if use.whole) * rows
    return Judged(join, rows, asked * _ASKED_US + kept * _SAVED_US - rows * _KEPT_US)


def _rows(predicate: str, sizes: Measured) -> float:
    known = sizes.rows(predicate)
    return _UNKNOWN_ROWS if known is None else max(1.0, known)


def _solutions(join: CommonJoin, sized: Sequence[float], sizes: Measured) -> float:
    """How many solutions a join has, as planners reckon: the product of the sizes by the values of
    shared columns.
    """
    expected = prod(sized)
    seen: dict[str, float] = {}
    for atom, size in zip(join.atoms, sized, strict=True):
        counted = sizes.rows(atom.predicate) is not None
        for position, term in _columns(atom):
            values = sizes.distinct(atom.predicate, position) if counted else size
            if isinstance(term, Constant):
                expected /= max(1.0, values if counted else 1 / _EQUAL_SHARE)
            elif isinstance(term, Variable) and term.name in seen:
                expected /= max(1.0, seen[term.name], values)
            elif isinstance(term, Variable):
                seen[term.name] = values
    return expected * prod(map(_share, join.conditions))


def _columns(atom: AtomForm) -> Iterator[tuple[int, Term]]:
    yield from enumerate(atom.terms, 1)
    for name, terms in atom.lattices:
        if name == "time":
            yield 0, terms[0]


def _share(condition: Expression) -> float:
    if not isinstance(condition, Call):
        return 1.0
    if condition.name == "&&":
        return prod(map(_share, condition.arguments))
    if condition.name == "==":
        return _EQUAL_SHARE
    return _ORDER_SHARE if condition.name in ("<", "<=", ">", ">=") else 1.0


# Which rules have what.


@dataclass(frozen=True, slots=True)
class _Occurrence:
    """Some atoms of a rule in the order that names their variables best, and the guards on them."""

    form: RuleForm
    places: tuple[int, ...]
    names: Mapping[str, str]
    guards: Mapping[Any, Expression]


def _occurrences(checked: CheckedProgram, forms: Iterable[RuleForm]) -> list[list[_Occurrence]]:
    """For each set of atoms that several rules have, where they have it."""
    subsets = [(form, subset) for form in forms for subset in _subsets(checked, form)]
    by_name = Counter(_predicates(form, subset) for form, subset in subsets)
    found: dict[Any, dict[int, _Occurrence]] = {}
    for form, subset in subsets:
        if by_name[_predicates(form, subset)] > 1:
            key, occurrence = _named_best(checked, form, subset)
            found.setdefault(key, {}).setdefault(form.number, occurrence)
    return [list(mine.values()) for mine in found.values() if len(mine) > 1]


def _subsets(checked: CheckedProgram, form: RuleForm) -> Iterator[tuple[int, ...]]:
    """The sets of two atoms and more that may be shared, each held together by variables."""
    if any(atom.is_clock for atom in form.atoms):
        return  # what ticks is reckoned from the guards of the whole rule
    able = [i for i, atom in enumerate(form.atoms) if _sharable(checked, atom)]
    names = {i: frozenset(form.atoms[i].variables()) for i in able}
    sizes = range(2, len(able) + 1) if len(able) <= _ATOMS_MAX else (len(able),)
    for size in sizes:
        for subset in combinations(able, size):
            if _together(subset, names) and _orders(form, subset) <= _ORDERS_MAX:
                yield subset


def _sharable(checked: CheckedProgram, atom: AtomForm) -> bool:
    """Whether nothing of the facts of an atom matters but their keys, and until when they hold."""
    plain = all(name == "time" for name, _ in atom.lattices)
    return plain and not atom.suppressed and not checked.lattices_of(atom.predicate)


def _together(subset: Sequence[int], names: Mapping[int, frozenset[str]]) -> bool:
    reached, waiting = names[subset[0]], list(subset[1:])
    while waiting:
        near = next((i for i in waiting if not reached.isdisjoint(names[i])), None)
        if near is None:
            return False
        reached |= names[near]
        waiting.remove(near)
    return True


def _predicates(form: RuleForm, subset: Sequence[int]) -> tuple[str, ...]:
    return tuple(sorted(form.atoms[i].predicate for i in subset))


def _orders(form: RuleForm, subset: Sequence[int]) -> int:
    return prod(map(factorial, Counter(_predicates(form, subset)).values()))


def _named_best(
    checked: CheckedProgram, form: RuleForm, subset: Sequence[int]
) -> tuple[Any, _Occurrence]:
    """The text of some atoms that is the same for every rule that has them, and where this one
    does.
    """
    alike: dict[str, list[int]] = {}
    for i in subset:
        alike.setdefault(form.atoms[i].predicate, []).append(i)
    certain = list(_certain(form, frozenset(v for i in subset for v in form.atoms[i].variables())))
    best: tuple[Any, Any, _Occurrence] | None = None
    for parts in product(*(permutations(alike[name]) for name in sorted(alike))):
        places = tuple(i for part in parts for i in part)
        names: dict[str, str] = {}
        text = tuple(atom_key(form.atoms[i], names, form.types, checked) for i in places)
        guards = {expression_key(guard, names): guard for guard in certain}
        order = (repr(text), sorted(map(repr, guards))) if len(alike) < len(subset) else None
        if best is None or order < best[0]:
            best = order, text, _Occurrence(form, places, names, guards)
    assert best is not None
    return best[1], best[2]


def atom_key(
    atom: AtomForm, names: dict[str, str], types: Mapping[str, Type], checked: CheckedProgram
) -> Any:
    """What is the same for two atoms that differ in the names of variables alone; new ones are
    added to `names`.

    A wildcard is a variable that nothing else names.
    """
    kinds = [kind for _, kind in checked.columns[atom.predicate]]
    terms = tuple(
        _term_key(term, names, types, kind) for term, kind in zip(atom.terms, kinds, strict=True)
    )
    lattices = tuple(
        (name, tuple(_term_key(term, names, types, "int") for term in mine))
        for name, mine in atom.lattices
    )
    return atom.predicate, terms, lattices


def _term_key(term: Term, names: dict[str, str], types: Mapping[str, Type], kind: str) -> Any:
    if isinstance(term, Wildcard):
        return names.setdefault(f"#_{len(names)}", f"x{len(names)}"), False
    if isinstance(term, Variable):
        name = names.setdefault(term.name, f"x{len(names)}")
        return name, types.get(term.name) is Type.FLOAT and kind != "float"
    return expression_key(term, names)


def expression_key(expression: Expression, names: Mapping[str, str]) -> Any:
    """What is the same for two expressions that differ in the names of variables alone; `names` are
    those for it.
    """
    if isinstance(expression, Constant):
        return "=", type(expression.value).__name__, repr(expression.value)
    if isinstance(expression, Variable):
        return names[expression.name]
    sign, parts = expression.name, [expression_key(part, names) for part in expression.arguments]
    if sign in _SWAPPED:
        sign, parts = _SWAPPED[sign], parts[::-1]
    elif sign in ("==", "!="):
        parts.sort(key=repr)
    return sign, *parts


def _certain(form: RuleForm, names: frozenset[str]) -> Iterator[Expression]:
    """The conditions over these variables that cannot fail, as far as none before them can."""
    for condition in form.conditions:
        if bounds_of(condition, {}) is None:
            return
        for part in _parts(condition):
            if frozenset() != variables_of(part) <= names:
                yield part


def _parts(condition: Expression) -> Iterator[Expression]:
    if isinstance(condition, Call) and condition.name == "&&":
        for argument in condition.arguments:
            yield from _parts(argument)
    else:
        yield condition


def places_alike(
    checked: CheckedProgram, forms: Iterable[RuleForm]
) -> Mapping[int, Sequence[tuple[int, ...]]]:
    """For each rule by number the atoms that another rule has too, whatever their guards: in an
    order that both have.
    """
    found: dict[int, dict[tuple[int, ...], None]] = {}
    for known in _occurrences(checked, forms):
        for each in known:
            found.setdefault(each.form.number, {})[each.places] = None
    return {number: sorted(mine, key=len, reverse=True) for number, mine in found.items()}


# What of it is shared.


def _variants(known: Sequence[_Occurrence]) -> Iterator[CommonJoin]:
    """The joins of some atoms that several rules have: with the guards of all of them, or more, of
    fewer rules.
    """
    every = [frozenset(each.guards) for each in known]
    often = [guards for guards, _ in Counter(every).most_common(_VARIANTS_MAX)]
    for guards in dict.fromkeys((frozenset.intersection(*every), *often)):
        mine = [each for each, its in zip(known, every, strict=True) if guards <= its]
        if len(mine) > 1:
            yield _join_of(mine, guards)


def _join_of(known: Sequence[_Occurrence], guards: frozenset[Any]) -> CommonJoin:
    first = known[0]
    return CommonJoin(
        tuple(first.form.atoms[place] for place in first.places),
        tuple(guard for text, guard in first.guards.items() if text in guards),
        first.form.types,
        tuple(Use(each.form, each.places, _wanted(each, guards)) for each in known),
    )


def _wanted(each: _Occurrence, guards: frozenset[Any]) -> float:
    """What share of the solutions of a join with these guards a rule has a use for, about."""
    said = prod(_share(guard) for text, guard in each.guards.items() if text in guards)
    return prod(map(_share, each.form.conditions)) / said


def _with_uses(join: CommonJoin, uses: tuple[Use, ...]) -> CommonJoin:
    return CommonJoin(join.atoms, join.conditions, join.types, uses)


__all__ = [
    "CommonJoin", "Judged", "Measured", "Sharing", "Use", "atom_key", "common_joins", "expression_key",
    "judged", "places_alike",
]  # fmt: skip
