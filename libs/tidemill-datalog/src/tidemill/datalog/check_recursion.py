"""Recursion: which cycles are refused (S119, S115), and what may happen inside a fixed point (S107, S112)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tidemill.datalog.ast import Binary, Call, Expression, Literal, Variable, Wildcard, walk
from tidemill.datalog.checked import SEMILATTICES, ResolvedAtom, ResolvedRule
from tidemill.datalog.diagnostics import Diagnostic
from tidemill.datalog.monotonicity import Unfinished
from tidemill.datalog.scope import names_in
from tidemill.datalog.strata import Edge, EdgeKind, PredicateGraph

_BOUNDING = frozenset(("<", "<=", ">", ">=", "=="))


def check_cycles(
    rules: tuple[ResolvedRule, ...], graph: PredicateGraph, file: str
) -> list[Diagnostic]:
    """S119 for each `not` on a cycle, S115 for each non-monotone aggregate on one."""
    found: list[Diagnostic] = []
    for edge in graph.edges:
        if not graph.inside(edge):
            continue
        if edge.kind is EdgeKind.NEGATION:
            message = f"`{edge.target}` depends on its own absence through `not {edge.source}`"
            hint = "break the cycle, or let one step hold in the next tick: @next"
            found.append(_cycle("S119", message, edge, graph, file, hint))
        elif edge.kind is EdgeKind.AGGREGATE:
            message = f"`{edge.target}` is a {edge.lattice} over itself"
            hint = "only min, max and set may be recursive"
            found.append(_cycle("S115", message, edge, graph, file, hint))
    return found


def _cycle(
    code: str, message: str, edge: Edge, graph: PredicateGraph, file: str, hint: str
) -> Diagnostic:
    cycle = graph.shortest_cycle(edge)
    edges = tuple(
        f"{each.source} → {each.target} ({_kind(each)}) at {each.span.line}:{each.span.column}"
        for each in cycle
    )
    return Diagnostic(
        code, message, edge.span, file, hint, tuple(each.source for each in cycle), edges
    )


def _kind(edge: Edge) -> str:
    return edge.lattice or edge.kind.value


def check_recursion(
    rules: tuple[ResolvedRule, ...], graph: PredicateGraph, timed: frozenset[str], file: str
) -> list[Diagnostic]:
    """S117, S107 and S112 in the order of the rules."""
    found: list[Diagnostic] = []
    for rule in rules:
        if not rule.deductive or rule.predicate not in graph.recursive:
            continue
        inside = [
            atom for atom in rule.atoms if graph.recursive_pair(atom.predicate, rule.predicate)
        ]
        found.extend(_semilattices_over_events(rule, timed, file))
        found.extend(Unfinished(rule, inside, file).mistakes(timed))
        found.extend(_parafacts_matched(inside, file))
        found.extend(_unbounded_values(rule, inside, file))
    return found


def _semilattices_over_events(
    rule: ResolvedRule, timed: frozenset[str], file: str
) -> Iterator[Diagnostic]:
    for parafact in rule.parafacts:
        if parafact.lattice in SEMILATTICES and rule.predicate in timed:
            yield Diagnostic(
                "S117", f"`@{parafact.lattice}` in a recursion over events", parafact.name_span, file,
                "min, max and set may be recursive over timeless facts only",
            )  # fmt: skip


def _parafacts_matched(inside: list[ResolvedAtom], file: str) -> Iterator[Diagnostic]:
    for atom in inside:
        for parafact in atom.parafacts:
            if parafact.lattice not in SEMILATTICES:
                yield Diagnostic(
                    "S107",
                    f"`@{parafact.lattice}` of `{atom.predicate}` is matched inside its own recursion",
                    parafact.name_span, file, "match it in a rule after the recursion is finished",
                )  # fmt: skip


def _unbounded_values(
    rule: ResolvedRule, inside: list[ResolvedAtom], file: str
) -> Iterator[Diagnostic]:
    """S112: a head argument computed from a recursive fact needs a guard on what it is computed from."""
    recursive = {
        term.name
        for atom in inside
        if not atom.negated
        for term in [*atom.terms, *(each for p in atom.parafacts for each in p.terms)]
        if isinstance(term, Variable)
    }
    bounded: _Bounded | None = None
    for term in rule.terms:
        computed: Expression = term
        while isinstance(computed, Variable) and computed.name in rule.definitions:
            computed = rule.definitions[computed.name]
        if isinstance(computed, Variable | Literal | Wildcard):
            continue
        names = names_in(computed, rule.definitions)
        if not names & recursive:
            continue
        if bounded is None:
            bounded = _bounded_variables(rule)
        grows = _grows_texts(computed, rule)
        if not names & (bounded.lengths if grows else bounded.values):
            name = min(names & recursive)
            yield Diagnostic(
                "S112", "a recursion computes ever new values", term.span, file,
                f"bound `{name}` in the guard: if {f'length({name})' if grows else name} < …",
            )  # fmt: skip


def _grows_texts(computed: Expression, rule: ResolvedRule) -> bool:
    """Whether an expression puts texts together: there are endlessly many below any text."""
    waiting, seen = [computed], set[str]()
    while waiting:
        for part in walk(waiting.pop()):
            if isinstance(part, Call) and part.name == "concat":
                return True
            if isinstance(part, Variable) and part.name in rule.definitions.keys() - seen:
                seen.add(part.name)
                waiting.append(rule.definitions[part.name])
    return False


@dataclass(frozen=True, slots=True)
class _Bounded:
    """The variables that stand in some comparison of the guard other than `!=`, and those whose length it bounds."""

    values: set[str]
    lengths: set[str]


def _shorter_than(part: Binary, rule: ResolvedRule) -> set[str]:
    """The variables whose length, or whose text itself, a comparison bounds from above."""
    if part.operator == "==":
        return set(names_in(part, rule.definitions))
    small = part.left if part.operator in ("<", "<=") else part.right
    while isinstance(small, Variable) and small.name in rule.definitions:
        small = rule.definitions[small.name]
    return {
        name
        for call in walk(small)
        if isinstance(call, Call) and call.name == "length"
        for name in names_in(call, rule.definitions)
    }


def _bounded_variables(rule: ResolvedRule) -> _Bounded:
    found: set[str] = set()
    lengths: set[str] = set()
    seen: set[str] = set()
    waiting = list(rule.guards)
    while waiting:
        for part in walk(waiting.pop()):
            if isinstance(part, Binary) and part.operator in _BOUNDING:
                found |= names_in(part, rule.definitions)
                lengths |= _shorter_than(part, rule)
            elif (
                isinstance(part, Variable)
                and part.name in rule.definitions
                and part.name not in seen
            ):
                seen.add(part.name)
                waiting.append(rule.definitions[part.name])
    return _Bounded(found, lengths)
