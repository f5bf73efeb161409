"""Recursion: refused cycles (S119, S115), and the limits inside a fixed point (S107, S112)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tidemill.datalog.ast import Binary, Call, Expression, Literal, Unary, Variable, Wildcard, walk
from tidemill.datalog.checked import SEMILATTICES, ResolvedAtom, ResolvedRule
from tidemill.datalog.diagnostics import Diagnostic
from tidemill.datalog.monotonicity import Unfinished
from tidemill.datalog.scope import names_in, parts_of, resolved
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
    """S112: a head argument computed from a recursive fact needs a guard on its sources."""
    recursive = {
        term.name
        for atom in inside
        if not atom.negated
        for term in [*atom.terms, *(each for p in atom.parafacts for each in p.terms)]
        if isinstance(term, Variable)
    }
    bounded: _Bounded | None = None
    for term in rule.terms:
        computed = resolved(term, rule.definitions)
        if isinstance(computed, Variable | Literal | Wildcard):
            continue
        names = names_in(computed, rule.definitions)
        if not names & recursive:
            continue
        if bounded is None:
            bounded = _bounded_variables(rule)
        # Texts put together: there are endlessly many below any text.
        grows = any(
            isinstance(part, Call) and part.name == "concat"
            for part in parts_of(computed, rule.definitions)
        )
        steps = _steps(computed, frozenset(recursive), rule)
        if not names & (bounded.lengths if grows else bounded.for_steps(steps)):
            name, sign = min(names & recursive), ">" if steps == {-1} else "<"
            yield Diagnostic(
                "S112", "a recursion computes ever new values", term.span, file,
                f"bound `{name}` in the guard: if {f'length({name})' if grows else name} {sign} …",
            )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Bounded:
    """The variables with a guard above, with a guard below, and with a bounded length."""

    below: frozenset[str] = frozenset()
    above: frozenset[str] = frozenset()
    lengths: frozenset[str] = frozenset()

    def __or__(self, other: _Bounded) -> _Bounded:
        return _Bounded(
            self.below | other.below, self.above | other.above, self.lengths | other.lengths
        )

    def __and__(self, other: _Bounded) -> _Bounded:
        return _Bounded(
            self.below & other.below, self.above & other.above, self.lengths & other.lengths
        )

    def for_steps(self, steps: frozenset[int]) -> frozenset[str]:
        """The variables that are bounded in the direction of these signs, or in both."""
        if steps == {1}:
            return self.below
        return self.above if steps == {-1} else self.below | self.above


def _steps(computed: Expression, recursive: frozenset[str], rule: ResolvedRule) -> frozenset[int]:
    """Directions in which a sum moves a recursive value: 1 up, -1 down, both where that is unknown.

    A summand of unknown sign counts as positive.
    """
    signs: set[int] = set()
    came = False
    for part, sign in _summands(computed, rule):
        if isinstance(part, Variable) and part.name in recursive and sign > 0 and not came:
            came = True
        elif isinstance(part, Literal) and isinstance(part.value, int | float):
            signs.add(sign if part.value > 0 else -sign)
        elif isinstance(part, Variable):
            signs.add(sign)
        else:
            return frozenset((1, -1))
    return frozenset(signs) if came and signs else frozenset((1, -1))


def _summands(expression: Expression, rule: ResolvedRule) -> Iterator[tuple[Expression, int]]:
    """The parts of a sum, with definitions in their places, each with its sign."""
    waiting = [(expression, 1)]
    while waiting:
        part, sign = waiting.pop()
        part = resolved(part, rule.definitions)
        if isinstance(part, Binary) and part.operator in ("+", "-"):
            waiting += [(part.left, sign), (part.right, sign if part.operator == "+" else -sign)]
        elif isinstance(part, Unary) and part.operator == "-":
            waiting.append((part.operand, -sign))
        else:
            yield part, sign


def _shorter_than(part: Binary, rule: ResolvedRule) -> set[str]:
    """The variables whose length, or whose text itself, a comparison bounds from above."""
    if part.operator == "==":
        return set(names_in(part, rule.definitions))
    small = resolved(part.left if part.operator in ("<", "<=") else part.right, rule.definitions)
    return {
        name
        for call in walk(small)
        if isinstance(call, Call) and call.name == "length"
        for name in names_in(call, rule.definitions)
    }


def _bounded_variables(rule: ResolvedRule) -> _Bounded:
    found = _Bounded()
    for guard in rule.guards:
        found |= _bounded_by(guard, rule)
    return found


def _bounded_by(guard: Expression, rule: ResolvedRule) -> _Bounded:
    """The bounds that a condition sets where it is true; for `a || b` the bounds of both sides."""
    guard = resolved(guard, rule.definitions)
    if not isinstance(guard, Binary):
        return _Bounded()
    if guard.operator in ("&&", "||"):
        left, right = (_bounded_by(side, rule) for side in (guard.left, guard.right))
        return left | right if guard.operator == "&&" else left & right
    if guard.operator not in _BOUNDING:
        return _Bounded()
    names = names_in(guard, rule.definitions)
    lengths = frozenset(_shorter_than(guard, rule))
    if guard.operator == "==":
        return _Bounded(names, names, lengths)
    small, great = guard.left, guard.right
    if guard.operator in (">", ">="):
        small, great = great, small
    below, above = _sides(small, rule)
    downwards, upwards = _sides(great, rule)
    return _Bounded(below | upwards, above | downwards, lengths)


def _sides(expression: Expression, rule: ResolvedRule) -> tuple[frozenset[str], frozenset[str]]:
    """The variables that grow with an expression, and those that fall; both if it is no sum."""
    rising: set[str] = set()
    falling: set[str] = set()
    for part, sign in _summands(expression, rule):
        if isinstance(part, Variable):
            (rising if sign > 0 else falling).add(part.name)
        else:
            names = names_in(part, rule.definitions)
            rising |= names
            falling |= names
    return frozenset(rising), frozenset(falling)
