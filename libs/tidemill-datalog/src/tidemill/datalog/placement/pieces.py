"""Pieces of heavy keys: facts with one key in all ranges, divided by more than the key.

Each rule of a fragment is divided in two ways. By its key, where that is light. By other variables
where it is heavy: then facts of atoms without these are in all ranges, for heavy keys alone. Both
ways find each match in one range, and whether a key is heavy is the same for all facts of a match.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from itertools import islice

from tidemill.datalog.logical.forms import AbsentForm, AtomForm, RuleForm
from tidemill.datalog.logical.plan import Component
from tidemill.datalog.placement.division import Division
from tidemill.datalog.placement.drafts import (
    CHOICES_MAX,
    STATES_MAX,
    Draft,
    State,
    added,
    choices_of,
)
from tidemill.datalog.placement.heavy import HeavyKeys
from tidemill.datalog.placement.places import EVERYWHERE, HeavyKey, Place
from tidemill.datalog.placement.splitting import CROSSING

FACT = "#fact"
"""In place of the variables of a key: all columns of one fact."""


@dataclass(frozen=True, slots=True)
class Finer:
    """The way to divide matches of a rule whose key has one of some `spots`."""

    way: Division
    spots: frozenset[int]


@dataclass(frozen=True, slots=True)
class Pieces:
    """The heavy keys of a fragment, with what is finer about each of its rules.

    `undivided` says why some keys are in one range. The facts of components in `stuck` have to
    be there.
    """

    keys: tuple[HeavyKey, ...] = ()
    rules: tuple[Finer | None, ...] = ()
    stuck: tuple[Component, ...] = ()
    undivided: Mapping[HeavyKey, str] = field(default_factory=dict)


def pieces_of(draft: Draft, heavy: HeavyKeys) -> Pieces:
    """The pieces of a fragment, of each group of components that hands facts on within it."""
    if draft.way != "ranges":
        return Pieces()
    keys: dict[HeavyKey, str] = {}
    rules: dict[int, Finer] = {}
    stuck = []
    for group in _groups(draft):
        reads = _HeavyReads(group, heavy)
        if not reads.all:
            continue
        found = _finer(group, reads)
        if isinstance(found, Component):
            names = ", ".join(name.rpartition(":")[2] for name in found.predicates)
            keys |= dict.fromkeys(reads.keys, f"{names}: one range has to have all its matches")
            stuck.append(found)
            continue
        apart = {key.spot for key in reads.copied(found)}
        why = "many other facts have it, too, and would be in all ranges"
        keys |= {key: why if key.spot in apart else keys.get(key, "") for key in reads.keys}
        spots = frozenset(key.spot for key in reads.keys) - apart
        rules |= {id(r): Finer(way, spots) for r, way in zip(group.rules, found, strict=True)}
    finer = tuple(rules.get(id(rule)) for rule in draft.rules)
    return Pieces(tuple(keys), finer, tuple(stuck), {key: why for key, why in keys.items() if why})


def _groups(draft: Draft) -> Iterator[Draft]:
    """The components of a fragment in groups, of which none reads what another derives."""
    groups: list[list[Component]] = []
    for component in draft.components:
        read = {name for rule in component.rules for name in rule.reads}
        met = [each for each in groups if any(not read.isdisjoint(c.predicates) for c in each)]
        groups = [each for each in groups if each not in met]
        groups.append([*(c for each in met for c in each), component])
    ways = {id(r): way for r, way in zip(draft.rules, draft.states[0].rules, strict=True)}
    for group in groups:
        mine = [each for each in draft.components if any(each is one for one in group)]
        found = replace(draft, components=mine)
        rules = tuple(ways[id(rule)] for rule in found.rules)
        yield replace(found, states=[State(draft.states[0].placed, rules)])


class _HeavyReads:
    """The heavy keys of what a fragment reads: the rule and the atom that read each."""

    def __init__(self, draft: Draft, heavy: HeavyKeys) -> None:
        self.all: list[tuple[int, int, HeavyKey]] = []
        mine, ways = draft.predicates, draft.states[0].rules
        for number, (rule, way) in enumerate(zip(draft.rules, ways, strict=True)):
            read: Sequence[AtomForm | AbsentForm] = (*rule.atoms, *rule.absent)
            for at, (atom, place) in enumerate(zip(read, (*way.atoms, *way.absent), strict=True)):
                if place is not None and len(place.positions) == 1 and atom.predicate not in mine:
                    known = heavy.of(atom.predicate, place.positions[0])
                    self.all += [(number, at, key) for key in known.values()]

    @property
    def keys(self) -> Iterator[HeavyKey]:
        """The keys, some of them several times."""
        return (key for _, _, key in self.all)

    def copied(self, ways: Sequence[Division]) -> Iterator[HeavyKey]:
        """The keys of the first rules whose facts would be in all ranges."""
        for number, at, key in self.all:
            if number < len(ways):
                place = (*ways[number].atoms, *ways[number].absent)[at]
                if place is not None and place.everywhere:
                    yield key


def _finer(draft: Draft, reads: _HeavyReads) -> tuple[Division, ...] | Component:
    """Each rule divided by more than its key, or the first component that cannot be."""

    def rank(state: State) -> tuple[int, ...]:
        return sum(key.rows for key in reads.copied(state.rules)), *state.rank(draft.sizes)

    states, left = [State()], list(draft.states[0].rules)
    for component in draft.components:
        size = len(component.rules)
        mine, left = left[:size], left[size:]
        found = []
        for state in states if not any(rule.remembers for rule in component.rules) else ():
            for choice in islice(choices_of(component), CHOICES_MAX):
                for each in added(state, component, choice, True):
                    ways = [*map(_beside, mine, each.rules[-size:])]
                    known = [way for way in ways if way is not None]
                    if len(known) == size:
                        found.append(replace(each, rules=(*state.rules, *known)))
            if component.predicates[0].startswith(CROSSING):
                by_facts = _by_facts(component.rules[0], mine[0], draft.predicates)
                found += [State(state.placed, (*state.rules, way)) for way in by_facts]
        if not found:
            return component
        states = sorted(found, key=rank)[:STATES_MAX]
    return states[0].rules


def _by_facts(rule: RuleForm, light: Division, mine: AbstractSet[str]) -> Iterator[Division]:
    """Ways to divide a rule whose head is merged later by all columns of one of its facts.

    No atom is of a predicate in `mine`, whose facts stay where they are derived.
    """
    if mine & rule.reads:
        return
    absent = tuple(None if each is None else EVERYWHERE for each in light.absent)
    read: Sequence[AtomForm | AbsentForm] = (*rule.atoms, *rule.absent)
    names = [each.predicate for each in read if not each.is_clock]
    for at, (atom, known) in enumerate(zip(rule.atoms, light.atoms, strict=True)):
        columns = tuple(range(1, len(atom.terms) + 1))
        if known is not None and known.positions and {*columns} > {*known.positions}:
            others = [None if each is None else EVERYWHERE for each in light.atoms]
            others[at] = Place(columns)
            copied = [name for name in names if name != atom.predicate]
            yield Division(frozenset({FACT}), tuple(others), absent, tuple(copied))


def _beside(light: Division, heavy: Division) -> Division | None:
    """A way to divide a rule for heavy keys beside that for light ones, None where it is none.

    Facts that are in all ranges whatever their key stay there.
    """
    if heavy.variables <= light.variables:
        return None

    def places(
        known: Sequence[Place | None], finer: Sequence[Place | None]
    ) -> tuple[Place | None, ...]:
        return tuple(
            EVERYWHERE if one is not None and one.everywhere else other
            for one, other in zip(known, finer, strict=True)
        )

    atoms = places(light.atoms, heavy.atoms)
    if not any(place is not None and place.positions for place in atoms):
        return None
    return replace(heavy, atoms=atoms, absent=places(light.absent, heavy.absent))
