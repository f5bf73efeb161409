"""A program evaluated from the facts that it states itself: to try rules, and to teach them."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.datalog.catalog import Catalog, InputKind
from tidemill.datalog.check import check
from tidemill.datalog.evaluation import Engine
from tidemill.datalog.parser import parse
from tidemill.datalog.records import format_presence
from tidemill.time import UsageError

UPPER = 1_000_000


def presences_of(
    text: str,
    file: str = "<program>",
    *,
    upper: int = UPPER,
    predicates: Sequence[str] = (),
    default_kind: InputKind = "relation",
) -> list[str]:
    """What is present when, before `upper`: `[s,f) record`, a line each, then what failed.

    Of `predicates`, by default of all that a rule with a formula derives; what nobody states or
    derives is empty. Raises: ProgramErrors, UsageError.
    """
    program = parse(text, file)
    checked = check(program, Catalog(closed=False, default_kind=default_kind))
    if checked.ticked:
        raise UsageError(
            "programs with @next or @async run in ticks: apply a view with spec.tick, or write a case "
            "and ask tidemill conformance",
            reason="TickedProgram",
        )
    unknown = sorted(set(predicates) - set(checked.columns))
    if unknown:
        raise UsageError(f"the program has no {', '.join(unknown)}", reason="UnknownPredicate")
    derived = dict.fromkeys(r.head.application.name for r in program.rules if r.has_formula)
    evaluation = Engine(checked).evaluate({}, upper=upper)
    lines: list[str] = []
    for predicate in predicates or derived:
        found = evaluation.presences.get(predicate, [])
        ordered = sorted(found, key=lambda p: (p.start, p.end, str(p.record)))
        lines += [format_presence(p.record, p.start, p.end) for p in ordered]
    return [*lines, *(f"failed: {error.text}" for error in evaluation.errors)]
