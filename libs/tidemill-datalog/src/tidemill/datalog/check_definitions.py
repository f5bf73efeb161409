"""Definitions, functions and lattices (S103, S113, S108), and arities of lattices (S109)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from tidemill.datalog.ast import (
    Call,
    Expression,
    Span,
    Variable,
    Wildcard,
    children,
    walk,
)
from tidemill.datalog.checked import ResolvedParafact, ResolvedRule
from tidemill.datalog.diagnostics import Diagnostic
from tidemill.datalog.graphs import strong_components
from tidemill.datalog.habits import ELSEWHERE, WALL_CLOCKS
from tidemill.datalog.parser import DEPTH_MAX
from tidemill.datalog.resolution import did_you_mean
from tidemill.datalog.scope import Scope

PARTS_MAX = 5_000
"""Parts of an expression once its definitions stand in their places."""
_VALUES = ("a", "b", "c", "d", "e", "f", "g", "h")


def definitions_functions_lattices(scope: Scope) -> Iterator[Diagnostic]:
    """S103, S113, S108 and the arity of lattices."""
    rule = scope.rule
    if rule.definitions:
        yield from [*_definitions(scope)] or _too_deep(scope)
    for expression in rule.source.expressions:
        for part in walk(expression) if not isinstance(expression, Variable) else ():
            if isinstance(part, Call):
                yield from _function(scope, part)
    for parafact in rule.parafacts:
        yield from _lattice(scope, parafact)
    for mark in rule.source.head.suppressed:
        if mark.lattice not in scope.lattices:
            yield _unknown_lattice(scope, mark.lattice, mark.span)
    for atom, written in zip(rule.atoms, rule.source.atoms, strict=True):
        for parafact in atom.parafacts:
            yield from _lattice(scope, parafact)
        for mark in written.suppressed:
            if mark.lattice not in scope.lattices:
                yield _unknown_lattice(scope, mark.lattice, mark.span)


def _definitions(scope: Scope) -> Iterator[Diagnostic]:
    seen: set[str] = set()
    circular = _circular(scope.rule)
    for definition in scope.rule.source.definitions:
        if definition.name in seen:
            yield scope.report(
                "S103", f"`{definition.name}` is defined twice", definition.name_span,
                "give the second definition another name",
            )  # fmt: skip
        seen.add(definition.name)
        for variable in scope.unbound(definition.value):
            yield scope.report(
                "S103", f"`{variable.name}` has no value here", variable.span,
                "match it in a positive atom, or define it",
            )  # fmt: skip
        for part in walk(definition.value):
            if isinstance(part, Wildcard):
                yield scope.report("S103", "`_` has no value", part.span, "name the value")
        if definition.name in circular:
            yield scope.report(
                "S103", f"`{definition.name}` is defined through itself", definition.name_span,
                "a definition may use only variables and other definitions",
            )  # fmt: skip


def _too_deep(scope: Scope) -> Iterator[Diagnostic]:
    """Expressions that only their definitions make too deep, or too long, for checks and engines.

    Engines put definitions in the place of their names, so that definitions which use each other
    twice double what is evaluated at each step.
    """
    sizes: dict[str, _Size] = {}
    for definition in scope.rule.source.definitions:
        _measure(definition.name, scope.rule, sizes)
    for expression in scope.rule.source.expressions:
        size = _size(expression, sizes)
        says = ""
        if size.depth > DEPTH_MAX:
            says = f"this nests deeper than {DEPTH_MAX} levels through its definitions"
        elif size.parts > PARTS_MAX:
            says = f"this has more than {PARTS_MAX:,} parts through its definitions"
        if says:
            hint = "compute a part of it in a rule of its own"
            yield scope.report("S103", says, expression.span, hint)


@dataclass(frozen=True, slots=True)
class _Size:
    """Depth and number of parts of an expression with its definitions in their places."""

    depth: int
    parts: int


_NAME = _Size(0, 1)


def _measure(name: str, rule: ResolvedRule, sizes: dict[str, _Size]) -> None:
    """Put the sizes of a definition and of all it uses into `sizes`; it has no cycle."""
    waiting = [name]
    while waiting:
        value = rule.definitions[waiting[-1]]
        needed = [
            part.name for part in walk(value)
            if isinstance(part, Variable) and part.name in rule.definitions and part.name not in sizes
        ]  # fmt: skip
        if needed:
            waiting += needed
        else:
            sizes[waiting.pop()] = _size(value, sizes)


def _size(expression: Expression, sizes: Mapping[str, _Size]) -> _Size:
    deepest = parts = 0
    waiting = [(expression, 1)]
    while waiting:
        part, depth = waiting.pop()
        inner = sizes.get(part.name, _NAME) if isinstance(part, Variable) else _NAME
        deepest = max(deepest, depth + inner.depth)
        parts += inner.parts
        waiting.extend((child, depth + 1) for child in children(part))
    return _Size(deepest, parts)


def _circular(rule: ResolvedRule) -> set[str]:
    """The definitions that use themselves, through others or not.

    Cost: linear in what is written.
    """
    uses = {
        name: [
            part.name for part in walk(value)
            if isinstance(part, Variable) and part.name in rule.definitions
        ]
        for name, value in rule.definitions.items()
    }  # fmt: skip
    return {
        name
        for component in strong_components(uses, uses.__getitem__)
        for name in component
        if len(component) > 1 or name in uses[name]
    }


def _aggregated(scope: Scope, call: Call) -> bool:
    """Whether the call is meant as the atom that an aggregate is over: count(q(x))."""
    over = [a.application for a in scope.rule.source.atoms if a.application.name in scope.lattices]
    return any(argument.value is call for a in over for argument in a.arguments)


def _function(scope: Scope, call: Call) -> Iterator[Diagnostic]:
    known = scope.functions.get(call.name)
    given = len(call.arguments)
    if known is None:
        hint = _closest(call.name, scope.functions)
        if call.name in scope.lattices:
            hint = f"a lattice stands behind the head or an atom: @{call.name}(…)"
        elif call.name in ELSEWHERE:
            hint = f"write {ELSEWHERE[call.name]}(…)"
        elif call.name in WALL_CLOCKS:
            hint = (
                "rules read no wall clock: match a time with @time(t), or clock(0, 1000) @time(t)"
            )
        elif _aggregated(scope, call):
            hint = "an aggregate stands behind the head: p(k) @count(x) := q(k, x);"
        elif any(call is guard for guard in scope.rule.guards) and not hint.startswith("did"):
            hint = f"atoms stand before `if`: … ^ {call.name}(…) if …"
        yield scope.report(
            "S113", f"there is no function `{call.name}`", call.name_span, hint
        )  # fmt: skip
    elif given < known.arity_min or (known.arity_max is not None and given > known.arity_max):
        wanted = _counted(known.arity_min, "argument")
        if known.arity_min != known.arity_max:
            wanted = f"at least {wanted}"
        yield scope.report(
            "S113", f"`{call.name}` takes {wanted}, not {given}", call.name_span,
            "give it as many as it takes",
        )  # fmt: skip


def _unknown_lattice(scope: Scope, name: str, span: Span) -> Diagnostic:
    return scope.report(
        "S108", f"there is no lattice `{name}`", span, _closest(name, scope.lattices)
    )


def _closest(name: str, known: Iterable[str]) -> str:
    """The known name that was likely meant, or all of them."""
    names = sorted(known)
    return did_you_mean(name, names) or f"known are {', '.join(names)}"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _lattice(scope: Scope, parafact: ResolvedParafact) -> Iterator[Diagnostic]:
    arity = scope.lattices.get(parafact.lattice)
    if arity is None:
        yield _unknown_lattice(scope, parafact.lattice, parafact.name_span)
    elif arity != len(parafact.terms):
        yield scope.report(
            "S109",
            f"`@{parafact.lattice}` has {_counted(arity, 'value')}, not {len(parafact.terms)}",
            parafact.name_span, f"write @{parafact.lattice}({', '.join(_VALUES[:arity])})",
        )  # fmt: skip
