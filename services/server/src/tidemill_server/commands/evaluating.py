"""A program evaluated from the facts that it states itself: to try rules, and to teach them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidemill.catalog.plugins import vocabulary_of
from tidemill.datalog.allowance import Allowance
from tidemill.datalog.ast import Literal, Program, walk
from tidemill.datalog.check import check
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.diagnostics import Diagnostic
from tidemill.datalog.goals import compile_goal
from tidemill.datalog.inputs import InputSchemas
from tidemill.datalog.lint import warn_about_unknown
from tidemill.datalog.logical.plan import LogicalPlan, logical_plan
from tidemill.datalog.magic_sets import magic_plan
from tidemill.datalog.parser import parse
from tidemill.datalog.presence import ErrorPresence, Presence
from tidemill.datalog.records import ANY, format_presence
from tidemill.datalog.relevance import fits
from tidemill.datalog.vocabulary import NOTHING, Named
from tidemill.errors import UsageError

UPPER = 1_000_000
MEMORY_MB = 4_096
"""MiB that an evaluation may hold, by its own count."""


def warnings_of(text: str, file: str = "<program>", named: Named = NOTHING) -> list[Diagnostic]:
    """Warnings about rules that are likely mistakes; a predicate without a rule or input is named
    once.

    The program may use the plugins in `named`. Raises: ProgramErrors, UsageError.
    """
    catalog = InputSchemas(closed=False)
    checked = check(parse(text, file), catalog, vocabulary_of(named))
    told = dict.fromkeys([*checked.warnings, *warn_about_unknown(checked, catalog)])
    return sorted(told, key=lambda warning: warning.span)


def upper_of(text: str, file: str = "<program>") -> int:
    """An instant that lies well beyond every time that the facts of a program name, at least UPPER.

    Arguments count as times where some rule makes a time of what it matches. Raises: ProgramErrors.
    """
    latest = max(_times(parse(text, file)), default=0)
    return max(UPPER, latest + UPPER // 2)


def _times(program: Program) -> list[int]:
    """The whole numbers that are times, or become them."""
    heads = [(rule.head, rule.has_formula) for rule in program.rules]
    made = any(each.name == "time" for head, derived in heads if derived for each in head.parafacts)
    stated = [head.application for head, derived in heads if made and not derived]
    named = [
        each for head, _ in heads for each in head.parafacts if each.name in ("time", "expires")
    ]
    return [
        part.value
        for application in (*named, *stated)
        for argument in application.arguments
        for part in walk(argument.value)
        if isinstance(part, Literal) and type(part.value) is int
    ]


def presences_of(
    text: str,
    file: str = "<program>",
    *,
    upper: int = UPPER,
    predicates: Sequence[str] = (),
    named: Named = NOTHING,
    memory_mb: int = MEMORY_MB,
) -> list[str]:
    """Presences before `upper`: `[s,f) record`, a line each, then the failures.

    `predicates` are by default all that a rule with a formula derives; one without facts or rules
    is empty. One of them may be a goal, `path("a", x)`. Then only the facts that it needs are
    derived, and failures elsewhere are not told. The program may use the plugins in `named`, and
    hold `memory_mb`, in MiB. Raises: ProgramErrors, UsageError, Exhausted.
    """
    program = parse(text, file)
    checked = check(program, InputSchemas(closed=False), vocabulary_of(named))
    if checked.ticked:
        raise UsageError(
            "programs with @next or @async run in ticks: apply a view with spec.tick, or write a case "
            "and ask tidemill conformance",
            reason="TickedProgram",
        )
    allowance = Allowance(memory_mb << 20, "--memory-mb")
    try:
        return _told(checked, predicates, upper, allowance)
    except MemoryError:
        raise UsageError(
            "the program ran out of memory: some rule goes on deriving larger or more values, as one "
            "that feeds itself does; bound it by a guard, or ask for one goal",
            reason="MemoryExhausted",
        ) from None


def _told(
    checked: CheckedProgram, predicates: Sequence[str], upper: int, allowance: Allowance
) -> list[str]:
    """Presences of goals, or of predicates with their failures."""
    plan = logical_plan(checked)
    if any("(" in asked for asked in predicates):
        return [line for asked in predicates for line in _answers(plan, asked, upper, allowance)]
    unknown = sorted(set(predicates) - set(checked.columns))
    if unknown:
        raise UsageError(f"the program has no {', '.join(unknown)}", reason="UnknownPredicate")
    rules = checked.program.rules
    derived = dict.fromkeys(r.head.application.name for r in rules if r.has_formula)
    presences, errors = _evaluated(plan, [*(predicates or derived)], upper, allowance)
    lines: list[str] = []
    for predicate in predicates or derived:
        lines += _lines(presences.get(predicate, []))
    return [*lines, *(f"failed: {error.text}" for error in errors)]


def _answers(plan: LogicalPlan, asked: str, upper: int, allowance: Allowance) -> list[str]:
    """Presences of a goal or of a predicate, derived for it alone."""
    columns = plan.checked.columns.get(asked, ())
    text = asked if "(" in asked else f"{asked}({', '.join('_' * len(columns))})"
    goal = compile_goal(text, plan.checked)
    pattern = tuple(term.value if isinstance(term, Literal) else ANY for term in goal.terms)
    bound = magic_plan(plan, goal.predicate, pattern)
    found, _ = _evaluated(bound, [goal.predicate], upper, allowance)
    fitting = [p for p in found.get(goal.predicate, ()) if fits(p.record.arguments, (pattern,))]
    return _lines([presence for presence in fitting if goal.bindings(presence.record) is not None])


def _evaluated(
    plan: LogicalPlan, told: Sequence[str], upper: int, allowance: Allowance
) -> tuple[Mapping[str, Sequence[Presence]], Sequence[ErrorPresence]]:
    from tidemill.datalog.dataflow import evaluate_plan  # loads loops

    return evaluate_plan(plan, {}, upper=upper, told=told, allowance=allowance.apart())


def _lines(found: Sequence[Presence]) -> list[str]:
    ordered = sorted(found, key=lambda p: (p.start, p.end, str(p.record)))
    return [format_presence(p.record, p.start, p.end) for p in ordered]
