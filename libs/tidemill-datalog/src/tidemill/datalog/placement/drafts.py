"""Fragments while components are added to them, each with the ways left to place its facts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, islice, product

from tidemill.datalog.logical.forms import RuleForm
from tidemill.datalog.logical.plan import Component
from tidemill.datalog.placement.division import KEY_MAX, Division, division, head_keys, keys_of
from tidemill.datalog.placement.fact_lattices import FactLattices
from tidemill.datalog.placement.places import Positions, Way
from tidemill.datalog.placement.sizes import Sizes
from tidemill.datalog.placement.splitting import CROSSING

STATES_MAX = 32
"""Ways to place the facts of one fragment that are followed."""
CHOICES_MAX = 64
"""Ways to place the predicates of one component that are tried."""


@dataclass(frozen=True, slots=True)
class State:
    """One way to place what a fragment derives, and how each of its rules is divided."""

    placed: Mapping[str, Positions] = field(default_factory=dict)
    rules: tuple[Division, ...] = ()

    def rank(self, sizes: Sizes) -> tuple[int, int]:
        """Smaller is better: few rows in all ranges, then keys of many columns."""
        replicated = sum(sizes.of(name) for each in self.rules for name in each.replicated)
        return replicated, -sum(len(each.variables) for each in self.rules)


@dataclass(slots=True)
class Draft:
    """One fragment so far."""

    way: Way
    sizes: Sizes
    components: list[Component] = field(default_factory=list)
    states: list[State] = field(default_factory=lambda: [State()])
    reason: str = ""
    advice: str = ""
    returning: frozenset[str] = frozenset()
    """Predicates that it derives, and reads where they come back in the next round."""

    @property
    def rules(self) -> list[RuleForm]:
        """Its rules, in the order of its components."""
        return [rule for each in self.components for rule in each.rules]

    @property
    def predicates(self) -> set[str]:
        """The predicates that it derives."""
        return {name for each in self.components for name in each.predicates}

    def states_with(
        self, component: Component, lattices: FactLattices, replicate: bool
    ) -> list[State]:
        """The ways that are left with a component more. Cost: ways · choices · rules."""
        mine = self.predicates | {*component.predicates}
        if any(_read_in_place(rule, lattices) - mine for rule in component.rules):
            return []
        choices = list(islice(choices_of(component), CHOICES_MAX))
        found = [
            each
            for state in self.states
            for choice in choices
            for each in added(state, component, choice, replicate)
        ]
        return sorted(found, key=lambda state: state.rank(self.sizes))[:STATES_MAX]


def _read_in_place(rule: RuleForm, lattices: FactLattices) -> set[str]:
    """The predicates that a rule reads only where they are derived."""
    return {atom.predicate for atom in rule.atoms if lattices.read_in_place(rule, atom)}


def read_in_place(components: Sequence[Component], lattices: FactLattices) -> set[str]:
    """The predicates that some rules read only where they are derived."""
    return {n for each in components for rule in each.rules for n in _read_in_place(rule, lattices)}


def choices_of(component: Component) -> Iterator[dict[str, Positions]]:
    """Ways to place the predicates of a component; those that are merged later have no place."""
    if component.predicates[0].startswith(CROSSING):
        yield {}
        return
    options = []
    for name in component.predicates:
        heads = [head_keys(rule).keys() for rule in component.rules if rule.head.predicate == name]
        shared = sorted(set.intersection(*map(set, heads))) if heads else []
        options.append(list(subsets(shared)))
    for found in product(*options):
        yield dict(zip(component.predicates, found, strict=True))


def subsets(positions: Sequence[int]) -> Iterator[Positions]:
    """Sets of columns that may be a key: all of them, then small ones first."""
    if len(positions) > KEY_MAX:
        yield tuple(positions)
    for size in range(1, min(KEY_MAX, len(positions)) + 1):
        yield from combinations(positions, size)


def added(
    state: State, component: Component, choice: Mapping[str, Positions], replicate: bool
) -> Iterator[State]:
    """The ways to place a component, whose facts are placed by a choice, beside a state."""
    placed = {**state.placed, **choice}
    if not choice:
        (rule,) = component.rules
        for variables in keys_of(rule, placed):
            way = division(rule, variables, placed, replicate)
            if way is not None:
                yield State(placed, (*state.rules, way))
        return
    ways: list[Division] = []
    for way in ways_of(component, placed, replicate):
        if way is None:
            return
        ways.append(way)
    yield State(placed, (*state.rules, *ways))


def ways_of(
    component: Component, placed: Mapping[str, Positions], replicate: bool
) -> Iterator[Division | None]:
    """The way to divide each rule for facts that are where they are placed; None for none."""
    for rule in component.rules:
        keys = head_keys(rule)
        mine = placed[rule.head.predicate]
        variables = frozenset(keys[at] for at in mine if at in keys)
        fits = len(variables) == len(mine)
        yield division(rule, variables, placed, replicate) if fits else None
