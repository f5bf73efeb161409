"""Definitions, functions and lattices: S103, S113, S108, and how many values a lattice has (S109)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches

from tidemill.datalog.ast import (
    Call,
    Expression,
    Span,
    Variable,
    Wildcard,
    children,
    expressions_of,
    walk,
)
from tidemill.datalog.checked import ResolvedParafact, ResolvedRule
from tidemill.datalog.diagnostics import Diagnostic
from tidemill.datalog.parser import DEPTH_MAX
from tidemill.datalog.scope import Scope

_VALUES = ("a", "b", "c", "d", "e", "f", "g", "h")


def definitions_functions_lattices(scope: Scope) -> Iterator[Diagnostic]:
    """S103, S113, S108 and the arity of lattices."""
    mistakes = list(_definitions(scope))
    rule = scope.rule
    if not mistakes and rule.definitions:
        mistakes = list(_too_deep(scope))
    yield from mistakes
    for expression in expressions_of(rule.source):
        for part in walk(expression):
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
        if _reaches_itself(scope.rule, definition.name):
            yield scope.report(
                "S103", f"`{definition.name}` is defined through itself", definition.name_span,
                "a definition may use only variables and other definitions",
            )  # fmt: skip


def _too_deep(scope: Scope) -> Iterator[Diagnostic]:
    """Expressions that only their definitions make too deep for the walks of checks and engines."""
    depths: dict[str, int] = {}
    for definition in scope.rule.source.definitions:
        _measure(definition.name, scope.rule, depths)
    for expression in expressions_of(scope.rule.source):
        if _depth(expression, depths) > DEPTH_MAX:
            yield scope.report(
                "S103", f"this nests deeper than {DEPTH_MAX} levels through its definitions",
                expression.span, "compute a part of it in a rule of its own",
            )  # fmt: skip


def _measure(name: str, rule: ResolvedRule, depths: dict[str, int]) -> None:
    """Put the depths of a definition, and of all it uses, into `depths`; definitions have no cycle."""
    waiting = [name]
    while waiting:
        value = rule.definitions[waiting[-1]]
        needed = [
            part.name for part in walk(value)
            if isinstance(part, Variable) and part.name in rule.definitions and part.name not in depths
        ]  # fmt: skip
        if needed:
            waiting += needed
        else:
            depths[waiting.pop()] = _depth(value, depths)


def _depth(expression: Expression, depths: Mapping[str, int]) -> int:
    deepest = 0
    waiting = [(expression, 1)]
    while waiting:
        part, depth = waiting.pop()
        inner = depths.get(part.name, 0) if isinstance(part, Variable) else 0
        deepest = max(deepest, depth + inner)
        waiting.extend((child, depth + 1) for child in children(part))
    return deepest


def _reaches_itself(rule: ResolvedRule, name: str) -> bool:
    waiting, seen = [name], set[str]()
    while waiting:
        for part in walk(rule.definitions[waiting.pop()]):
            if isinstance(part, Variable) and part.name in rule.definitions:
                if part.name == name:
                    return True
                if part.name not in seen:
                    seen.add(part.name)
                    waiting.append(part.name)
    return False


def _function(scope: Scope, call: Call) -> Iterator[Diagnostic]:
    known = scope.functions.get(call.name)
    given = len(call.arguments)
    if known is None:
        hint = _closest(call.name, scope.functions)
        if call.name in scope.lattices:
            hint = f"a lattice stands behind the head or an atom: @{call.name}(…)"
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
    close = get_close_matches(name, names, n=1)
    return f"did you mean `{close[0]}`?" if close else f"known are {', '.join(names)}"


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
