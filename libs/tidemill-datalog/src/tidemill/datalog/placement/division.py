"""By which variables the matches of a rule can be divided among ranges."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

from tidemill.datalog.logical.forms import (
    WIDEN,
    AbsentForm,
    AtomForm,
    Call,
    Expression,
    RuleForm,
    Variable,
    Wildcard,
)
from tidemill.datalog.placement.places import EVERYWHERE, Place, Positions

KEY_MAX = 3
"""Variables of a key, unless all that can be are of it."""
VARIABLES_MAX = 8
"""Variables of which keys are tried, the first ones of the text."""


@dataclass(frozen=True, slots=True)
class Division:
    """One way to divide the matches of a rule: by the values of `variables`.

    `atoms` and `absent` are the places of the facts, None for clocks. Facts of the predicates in
    `replicated` are in all ranges.
    """

    variables: frozenset[str]
    atoms: tuple[Place | None, ...]
    absent: tuple[Place | None, ...]
    replicated: tuple[str, ...]


def division(
    rule: RuleForm, variables: frozenset[str], placed: Mapping[str, Positions], replicate: bool
) -> Division | None:
    """The rule divided by some variables, None where that is no way.

    Predicates that are `placed` are read where they are. Others are read where the key says, or in
    all ranges where an atom lacks some of the variables and that is allowed.
    """
    places: list[Place | None] = []
    read: tuple[AtomForm | AbsentForm, ...] = (*rule.atoms, *rule.absent)
    for atom in read:
        place = _place(atom, variables, placed, replicate)
        if isinstance(place, bool):
            return None
        places.append(place)
    count = len(rule.atoms)
    if not any(each is not None and each.positions for each in places[:count]):
        return None  # each range would find the same matches
    known = zip(read, places, strict=True)
    replicated = tuple(atom.predicate for atom, place in known if place is EVERYWHERE)
    return Division(variables, tuple(places[:count]), tuple(places[count:]), replicated)


def _place(
    atom: AtomForm | AbsentForm, variables: frozenset[str], placed: Mapping[str, Positions],
    replicate: bool,
) -> Place | bool | None:  # fmt: skip
    """The place of the facts of an atom; None for a clock, False where that is no way."""
    if atom.is_clock:
        return None
    mine = placed.get(atom.predicate)
    if mine is not None and len(mine) != len(variables):
        return False
    found = columns_of(atom)
    if mine is not None:
        met = [name for name, at in found for each in mine if at == each]
        alike = len(met) == len(mine) and {*met} == variables
        return Place(mine) if alike else False
    first: dict[str, int] = {}
    for name, at in found:
        first.setdefault(name, at)
    if variables <= first.keys():
        return Place(tuple(sorted(first[name] for name in variables)))
    return EVERYWHERE if replicate else False


def columns_of(atom: AtomForm | AbsentForm) -> list[tuple[str, int]]:
    """The variables that stand alone in columns of a fact's key, each with its column."""
    terms: list[tuple[int, Expression | Wildcard]] = [*enumerate(atom.terms, 1)]
    terms += [(0, terms[0]) for lattice, terms in atom.lattices if lattice == "time"]
    return [(name, at) for at, term in terms if (name := _alone(term)) is not None]


def _alone(term: Expression | Wildcard) -> str | None:
    """The variable that a term is, maybe as a float."""
    if isinstance(term, Call) and term.name == WIDEN:
        term = term.arguments[0]
    return term.name if isinstance(term, Variable) else None


def keys_of(rule: RuleForm, placed: Mapping[str, Positions]) -> Iterator[frozenset[str]]:
    """The sets of variables by which a rule may be divided."""
    atoms = [atom for atom in rule.atoms if not atom.is_clock]
    for atom in atoms:
        if atom.predicate in placed:  # nothing else can be
            mine = placed[atom.predicate]
            yield frozenset(name for name, at in columns_of(atom) if at in mine)
            return
    names = list(dict.fromkeys(name for atom in atoms for name, _ in columns_of(atom)))
    shared = [n for n in names if all(n in dict(columns_of(atom)) for atom in atoms)]
    found = [frozenset(shared)] if shared else []
    for size in range(min(KEY_MAX, len(names)), 0, -1):
        found += map(frozenset, combinations(names[:VARIABLES_MAX], size))
    yield from dict.fromkeys(found)


def head_keys(rule: RuleForm) -> dict[int, str]:
    """The columns of the head's key that are variables alone, each with its variable."""
    found: dict[int, str] = {}
    terms: list[tuple[int, Expression | Wildcard]] = [*enumerate(rule.head.terms, 1)]
    if rule.head.time:
        terms.append((0, rule.head.time[0]))
    for at, term in terms:
        name = _alone(term)
        if name is not None and name not in found.values():
            found[at] = name
    return found
