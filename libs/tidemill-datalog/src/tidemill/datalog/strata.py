"""The graph of predicates: who reads whom and how, its cycles, and the strata that follow."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from enum import Enum

from tidemill.datalog.ast import Span
from tidemill.datalog.checked import CLOCK, NON_MONOTONE, SEMILATTICES, ResolvedRule
from tidemill.datalog.graphs import strong_components
from tidemill.datalog.nodes import dataclass


class EdgeKind(Enum):
    """Kind of a head's dependency on an atom of its body."""

    POSITIVE = "positive"
    NEGATION = "not"
    AGGREGATE = "aggregate"
    SEMILATTICE = "semilattice"


@dataclass(frozen=True, slots=True)
class Edge:
    """`target` is derived from `source`, as written at `span`."""

    source: str
    target: str
    kind: EdgeKind
    span: Span
    rule: int
    lattice: str = ""


class PredicateGraph:
    """The dependencies of one program. Cost of building: O(atoms).

    Rules with @next and @async count only if `over_ticks`: what holds in a later tick cannot feed
    the tick it comes from.
    """

    def __init__(self, rules: Iterable[ResolvedRule], *, over_ticks: bool = False) -> None:
        self.edges: list[Edge] = []
        self._above_clocks: set[str] = set()
        self._successors: dict[str, list[Edge]] = {}
        nodes: dict[str, None] = {}
        for rule in rules:
            nodes[rule.predicate] = None
            for atom in rule.atoms:
                if not atom.clock:
                    nodes[atom.predicate] = None
            if rule.deductive or over_ticks:
                self._add_rule(rule)
        self._nodes = tuple(nodes)
        self._component_of, self._components = _components(self._nodes, self._successors)
        self.recursive = frozenset(
            edge.source for edge in self.edges if self.inside(edge)
        )  # fmt: skip

    def _add_rule(self, rule: ResolvedRule) -> None:
        kind, lattice = _aggregation(rule)
        for atom in rule.atoms:
            how = EdgeKind.NEGATION if atom.negated else kind
            if atom.predicate == CLOCK:
                if how is not EdgeKind.POSITIVE:
                    self._above_clocks.add(rule.predicate)
                continue
            edge = Edge(
                atom.predicate, rule.predicate, how, atom.name_span, rule.number, lattice
            )  # fmt: skip
            self.edges.append(edge)
            self._successors.setdefault(edge.source, []).append(edge)

    def inside(self, edge: Edge) -> bool:
        """Whether an edge lies on a cycle."""
        return self._component_of[edge.source] == self._component_of[edge.target]

    def same_component(self, a: str, b: str) -> bool:
        """Whether two predicates are equal or lie on one cycle."""
        if a == b:
            return True
        return self._component_of.get(a, -1) == self._component_of.get(b, -2)

    def recursive_pair(self, atom: str, head: str) -> bool:
        """Whether a body atom reads the recursion that its head is part of."""
        return atom in self.recursive and head in self.recursive and self.same_component(atom, head)

    def shortest_cycle(self, through: Edge) -> tuple[Edge, ...]:
        """The shortest cycle that begins with an edge which lies on one. Cost: O(edges)."""
        came_by: dict[str, Edge | None] = {through.target: None}
        waiting = deque([through.target])
        while waiting:
            node = waiting.popleft()
            if node == through.source:
                break
            for edge in self._successors.get(node, ()):
                if edge.target not in came_by:
                    came_by[edge.target] = edge
                    waiting.append(edge.target)
        path: list[Edge] = []
        step = came_by.get(through.source)
        while step is not None:
            path.append(step)
            step = came_by[step.source]
        return (through, *reversed(path))

    def strata(self) -> dict[str, int]:
        """For each predicate the largest number of `not`-or-aggregate edges on a path into it."""
        stratum: dict[int, int] = {}
        incoming: dict[int, list[Edge]] = {}
        for edge in self.edges:
            incoming.setdefault(self._component_of[edge.target], []).append(edge)
        for index, component in enumerate(self._components):
            level = 0 if self._above_clocks.isdisjoint(component) else 1
            for edge in incoming.get(index, ()):
                if self.inside(edge):
                    continue
                step = 0 if edge.kind is EdgeKind.POSITIVE else 1
                level = max(level, stratum[self._component_of[edge.source]] + step)
            stratum[index] = level
        return {node: stratum[self._component_of[node]] for node in self._nodes}

    def components_in_order(self) -> tuple[tuple[str, ...], ...]:
        """The components, each after all that it reads."""
        return tuple(tuple(component) for component in self._components)


def _aggregation(rule: ResolvedRule) -> tuple[EdgeKind, str]:
    lattices = rule.aggregates
    strict = sorted(lattices & NON_MONOTONE)
    if strict:
        return EdgeKind.AGGREGATE, strict[0]
    soft = sorted(lattices & SEMILATTICES) or sorted(lattices)
    return (EdgeKind.SEMILATTICE, soft[0]) if soft else (EdgeKind.POSITIVE, "")


def _components(
    nodes: tuple[str, ...], successors: Mapping[str, list[Edge]]
) -> tuple[dict[str, int], list[list[str]]]:
    """Strongly connected components, sources first."""
    found = [
        sorted(component)
        for component in strong_components(
            nodes, lambda node: [edge.target for edge in successors.get(node, ())]
        )
    ]
    found.reverse()
    return {node: place for place, component in enumerate(found) for node in component}, found
