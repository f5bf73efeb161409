"""Recursion: which cycles are refused, who keeps a time, and what may happen inside a fixed point."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tidemill.datalog.ast import (
    AsyncTo,
    Binary,
    Call,
    Expression,
    Literal,
    Span,
    Unary,
    Variable,
    Wildcard,
    walk,
)
from tidemill.datalog.catalog import InputSchema
from tidemill.datalog.checked import (
    SEMILATTICES,
    ResolvedAtom,
    ResolvedParafact,
    ResolvedRule,
)
from tidemill.datalog.diagnostics import Diagnostic
from tidemill.datalog.strata import Edge, EdgeKind, PredicateGraph

_ORDERINGS = frozenset(("<", "<=", ">", ">=", "=="))
_FALLING = frozenset(("<", "<="))
_RISING = frozenset((">", ">="))


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


def check_times(
    rules: tuple[ResolvedRule, ...], inputs: Mapping[str, InputSchema], file: str
) -> tuple[frozenset[str], list[Diagnostic]]:
    """(predicates whose facts may have a time, S111 for rules that lose it)."""
    timed = {name for name, schema in inputs.items() if schema.kind == "events"}
    changed = True
    while changed:
        changed = False
        for rule in rules:
            if rule.predicate not in timed and _derives_time(rule, timed):
                timed.add(rule.predicate)
                changed = True
    mistakes = []
    for rule in rules:
        over_events = any(_may_carry(atom, timed) for atom in rule.positive)
        if over_events and not _derives_time(rule, timed):
            mistakes.append(
                Diagnostic(
                    "S111",
                    f"nothing gives `{rule.predicate}` a time",
                    _suppression_of(rule),
                    file,
                    "write @time(…) in the head, or keep the time of one atom",
                )
            )
    return frozenset(timed), mistakes


def _may_carry(atom: ResolvedAtom, timed: set[str]) -> bool:
    return atom.clock or atom.predicate in timed


def _derives_time(rule: ResolvedRule, timed: set[str]) -> bool:
    if rule.mentions("time"):
        return True
    if "time" in rule.suppressed:
        return False
    return any(_may_carry(atom, timed) and "time" not in atom.suppressed for atom in rule.positive)


def _suppression_of(rule: ResolvedRule) -> Span:
    marks = [*rule.source.head.suppressed]
    for atom in rule.source.atoms:
        marks += atom.suppressed
    return next((mark.span for mark in marks if mark.lattice == "time"), rule.source.head.span)


def check_recursion(
    rules: tuple[ResolvedRule, ...], graph: PredicateGraph, timed: frozenset[str], file: str
) -> list[Diagnostic]:
    """S107, S117 and S112 in the order of the rules."""
    found: list[Diagnostic] = []
    for rule in rules:
        if not rule.deductive or rule.predicate not in graph.recursive:
            continue
        inside = [
            atom for atom in rule.atoms if graph.recursive_pair(atom.predicate, rule.predicate)
        ]
        found.extend(_lattices_over_events(rule, timed, file))
        for atom in inside:
            for parafact in atom.parafacts:
                if parafact.lattice in SEMILATTICES:
                    found.extend(_semilattice_match(rule, atom, parafact, timed, file))
                else:
                    found.append(
                        Diagnostic(
                            "S107",
                            f"`@{parafact.lattice}` of `{atom.predicate}` is matched inside its own recursion",
                            parafact.name_span,
                            file,
                            "match it in a rule after the recursion is finished",
                        )
                    )
        found.extend(_unbounded_values(rule, inside, file))
    return found


def _lattices_over_events(
    rule: ResolvedRule, timed: frozenset[str], file: str
) -> Iterator[Diagnostic]:
    for parafact in rule.parafacts:
        if parafact.lattice in SEMILATTICES and rule.predicate in timed:
            yield Diagnostic(
                "S117",
                f"`@{parafact.lattice}` in a recursion over events",
                parafact.name_span,
                file,
                "min, max and set may be recursive over timeless facts only",
            )


def _semilattice_match(
    rule: ResolvedRule,
    atom: ResolvedAtom,
    parafact: ResolvedParafact,
    timed: frozenset[str],
    file: str,
) -> Iterator[Diagnostic]:
    """Inside the recursion a lattice variable is fresh and occurs only monotonely."""

    def refuse(message: str, span: Span) -> Diagnostic:
        hint = "use the value in a rule after the recursion is finished"
        return Diagnostic("S117", message, span, file, hint)

    if atom.predicate in timed:
        yield refuse(f"`@{parafact.lattice}` in a recursion over events", parafact.name_span)
        return
    for term in parafact.terms:
        if isinstance(term, Wildcard):
            continue
        if not isinstance(term, Variable) or term.name in rule.definitions:
            yield refuse("an unfinished value is compared", parafact.span)
        elif _occurrences(rule, term.name) > 1:
            yield refuse(f"the unfinished value `{term.name}` is matched elsewhere", term.span)
        else:
            yield from _uses(rule, parafact.lattice, term.name, refuse)


def _occurrences(rule: ResolvedRule, name: str) -> int:
    """How often a variable stands in the atoms of a body."""
    terms: list[Expression] = []
    for atom in rule.atoms:
        terms += atom.terms
        terms += [term for parafact in atom.parafacts for term in parafact.terms]
    return sum(
        isinstance(part, Variable) and part.name == name
        for term in terms
        for part in walk(unfold(term, rule.definitions))
    )


def _uses(rule: ResolvedRule, lattice: str, name: str, refuse: object) -> Iterator[Diagnostic]:
    assert callable(refuse)
    for term in rule.terms:
        if _contains(rule, term, name):
            yield refuse(f"the unfinished {lattice} `{name}` becomes part of a fact", term.span)
    if isinstance(rule.temporal, AsyncTo) and _contains(rule, rule.temporal.node, name):
        yield refuse(f"the unfinished {lattice} `{name}` names a node", rule.temporal.span)
    for parafact in rule.parafacts:
        for term in parafact.terms:
            if not _contains(rule, term, name):
                continue
            if parafact.lattice != lattice:
                yield refuse(f"a {lattice} becomes a {parafact.lattice}", parafact.span)
            elif not _monotone(unfold(term, rule.definitions), name):
                yield refuse(f"`{name}` does not occur monotonely", parafact.span)
    for condition in rule.guards:
        if _contains(rule, condition, name) and not _lasting(
            unfold(condition, rule.definitions), lattice, name
        ):
            yield refuse(f"this guard may turn false as `{name}` improves", condition.span)


def _contains(rule: ResolvedRule, expression: Expression, name: str) -> bool:
    return _names(unfold(expression, rule.definitions), name)


def _names(expression: Expression, name: str) -> bool:
    return any(isinstance(part, Variable) and part.name == name for part in walk(expression))


def unfold(expression: Expression, definitions: Mapping[str, Expression]) -> Expression:
    """The expression with every name from `where` replaced by what it stands for."""
    if not definitions:
        return expression
    match expression:
        case Variable(name=name) if name in definitions:
            return unfold(definitions[name], definitions)
        case Unary():
            operand = unfold(expression.operand, definitions)
            return Unary(expression.operator, operand, expression.span)
        case Binary():
            return Binary(
                expression.operator,
                unfold(expression.left, definitions),
                unfold(expression.right, definitions),
                expression.span,
                expression.place,
            )
        case Call():
            arguments = tuple(unfold(each, definitions) for each in expression.arguments)
            return Call(expression.name, arguments, expression.span, expression.name_span)
        case _:
            return expression


def _monotone(term: Expression, name: str) -> bool:
    """Whether a term grows with the variable (or does not depend on it)."""
    if not _names(term, name):
        return True
    match term:
        case Variable():
            return True
        case Binary(operator="+"):
            return _monotone(term.left, name) and _monotone(term.right, name)
        case Binary(operator="-"):
            return _monotone(term.left, name) and not _names(term.right, name)
        case Binary(operator="*"):
            return any(
                _not_negative(factor) and _monotone(other, name)
                for factor, other in ((term.left, term.right), (term.right, term.left))
            )
        case Call(name="least" | "greatest"):
            return all(_monotone(argument, name) for argument in term.arguments)
        case _:
            return False


def _not_negative(expression: Expression) -> bool:
    return (
        isinstance(expression, Literal)
        and type(expression.value) in (int, float)
        and expression.value >= 0  # type: ignore[operator]  # a number, as just tested
    )


def _lasting(guard: Expression, lattice: str, name: str) -> bool:
    """Whether a guard that is true stays true as the value improves."""
    if not _names(guard, name):
        return True
    match guard:
        case Binary(operator="&&" | "||"):
            return _lasting(guard.left, lattice, name) and _lasting(guard.right, lattice, name)
        case Binary() if lattice == "set":
            return (
                _size_of(guard.left, name)
                and guard.operator in _RISING
                and not _names(guard.right, name)
            ) or (
                _size_of(guard.right, name)
                and guard.operator in _FALLING
                and not _names(guard.left, name)
            )
        case Binary():
            improving, other = (_FALLING, _RISING) if lattice == "min" else (_RISING, _FALLING)
            if not _names(guard.right, name):
                return guard.operator in improving and _monotone(guard.left, name)
            if not _names(guard.left, name):
                return guard.operator in other and _monotone(guard.right, name)
            return False
        case Call(name="contains", arguments=(Variable(name=held), element)):
            return lattice == "set" and held == name and not _names(element, name)
        case _:
            return False


def _size_of(expression: Expression, name: str) -> bool:
    match expression:
        case Call(name="length", arguments=(Variable(name=held),)):
            return held == name
        case _:
            return False


def _unbounded_values(
    rule: ResolvedRule, inside: list[ResolvedAtom], file: str
) -> Iterator[Diagnostic]:
    """S112: a computed head argument over a recursive variable needs a guard on what it is computed from."""
    recursive = {
        term.name
        for atom in inside
        if not atom.negated
        for term in [*atom.terms, *(each for p in atom.parafacts for each in p.terms)]
        if isinstance(term, Variable)
    }
    compared = _compared_variables(rule)
    for term in rule.terms:
        computed = unfold(term, rule.definitions)
        if isinstance(computed, Variable | Literal | Wildcard):
            continue
        names = {part.name for part in walk(computed) if isinstance(part, Variable)}
        if names & recursive and not names & compared:
            yield Diagnostic(
                "S112",
                "a recursion computes ever new values",
                term.span,
                file,
                f"bound `{min(names & recursive)}` in the guard: if {min(names & recursive)} < …",
            )


def _compared_variables(rule: ResolvedRule) -> set[str]:
    """The variables that stand in some comparison of the guard."""
    found: set[str] = set()
    for guard in rule.guards:
        for part in walk(unfold(guard, rule.definitions)):
            if isinstance(part, Binary) and part.operator in _ORDERINGS:
                found |= {inner.name for inner in walk(part) if isinstance(inner, Variable)}
    return found
