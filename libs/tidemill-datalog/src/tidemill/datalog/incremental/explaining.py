"""What an incremental engine does with a program, in words: strata, joins, arrangements, and where time goes."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.evaluation.forms import AbsentForm, RuleForm
from tidemill.datalog.evaluation.joins import Step
from tidemill.datalog.formatter import format_rule
from tidemill.datalog.incremental.engine import IncrementalEngine
from tidemill.datalog.incremental.looped import LoopedUnit
from tidemill.datalog.incremental.matches import Matches
from tidemill.datalog.incremental.program import NEXT, SENT, AnyUnit
from tidemill.datalog.incremental.unit import Unit


def explain_plan(engine: IncrementalEngine) -> list[str]:
    """Lines that say for each stratum what is derived how: the joins that each kind of change runs.

    The joins are those for the facts that the engine holds; for an empty one, those it would begin with.
    """
    checked = engine.checked
    lines = ["strata"]
    inputs = [name for name in checked.inputs if name in checked.columns]
    if inputs:
        lines.append(f"  inputs: {', '.join(sorted(inputs))}")
    for stratum in sorted({unit.stratum for unit in engine.units}):
        units = [unit for unit in engine.units if unit.stratum == stratum]
        names = [name for unit in units for name in unit.component]
        lines.append(f"  {stratum}: {', '.join(map(_shown, names))}")
    lines += ["", "plan"]
    rules = {rule.number: rule for rule in checked.program.rules}
    for unit in sorted(engine.units, key=lambda unit: (unit.stratum, unit.level, unit.number)):
        lines.append(
            f"  stratum {unit.stratum}: {', '.join(map(_shown, unit.component))}, {_way(unit)}"
        )
        if not isinstance(unit, Unit):
            forms = unit.forms if isinstance(unit, LoopedUnit) else [r.form for r in unit.compiled]
            lines += [f"    rule {form.number}" for form in forms]
            continue
        for matches in unit.rules:
            if matches.form.number in rules and not matches.predicate.startswith("#clock"):
                lines += _rule_lines(matches, format_rule(rules[matches.form.number]), checked)
    lines += ["", "arrangements", *_arrangement_lines(engine)]
    return lines


def _shown(name: str) -> str:
    if name.startswith(NEXT):
        return f"{name.removeprefix(NEXT)} @next"
    return f"{name.removeprefix(SENT)} @async" if name.startswith(SENT) else name


def _way(unit: AnyUnit) -> str:
    if isinstance(unit, LoopedUnit):
        return "followed; recursive: by differences of its rounds"
    if not isinstance(unit, Unit):
        return "evaluated anew when something it reads changes"
    if unit.recursive:
        return "followed; recursive: what may stand on itself is deleted and derived again"
    return "followed"


def _rule_lines(matches: Matches, text: str, checked: CheckedProgram) -> list[str]:
    form = matches.form
    first, *rest = text.splitlines()
    lines = [f"    rule {form.number}: {first}", *(f"      {line}" for line in rest)]
    for atom in matches.joins.ordinary:
        plan = matches.joins.join(atom).plan
        steps = [_step(form, step, checked) for step in plan.steps[1:]]
        then = " -> ".join(["", *steps]) if steps else ""
        lines.append(f"      on {form.atoms[atom].predicate}{then}")
    lines += [f"      unless {_absent(absent, checked)}" for absent in form.absent]
    return lines


def _step(form: RuleForm, step: Step, checked: CheckedProgram) -> str:
    atom = form.atoms[step.atom]
    if atom.is_clock:
        return "clock, ticks in a range" if step.limits else "clock"
    return f"{atom.predicate}{_by(atom.predicate, step.positions, step.range_column, checked)}"


def _by(
    predicate: str, positions: Sequence[int], sorted_by: int | None, checked: CheckedProgram
) -> str:
    names = [_column(predicate, position, checked) for position in positions]
    text = f" by ({', '.join(names)})" if names else ""
    if sorted_by is not None:
        text += f" in a range of {_column(predicate, sorted_by, checked)}"
    return text or " all"


def _column(predicate: str, position: int, checked: CheckedProgram) -> str:
    if position == 0:
        return "time"
    columns = checked.columns.get(predicate, ())
    name = columns[position - 1][0] if position <= len(columns) else ""
    return name or f"c{position - 1}"


def _absent(absent: AbsentForm, checked: CheckedProgram) -> str:
    if absent.is_clock:
        return "clock"
    positions = [position for position, _ in absent.columns()]
    return f"{absent.predicate}{_by(absent.predicate, positions, None, checked)}"


def _arrangement_lines(engine: IncrementalEngine) -> list[str]:
    lines = []
    for name, table in sorted(engine.present.tables.items()):
        for positions, sorted_by, keys in table.arrangements():
            by = _by(name, positions, sorted_by, engine.checked)
            lines.append(f"  {_shown(name)}{by}: {len(table)} rows under {keys} keys")
    return lines or ["  none"]


def explain_analysis(engine: IncrementalEngine) -> list[str]:
    """Lines of a table: rows, bytes, runs and time of every predicate and rule, by stratum.

    For an engine that was given a timer. Time in joins is part of the time of the unit.
    """
    rows: list[tuple[str, ...]] = [("", "rows", "bytes", "runs", "matches", "found", "ms")]
    tables = engine.present.tables
    owned = {name for unit in engine.units for name in unit.component}
    for name, table in sorted(tables.items()):
        if name not in owned and not name.startswith("#"):
            rows.append((f"input {name}", f"{len(table)}", f"{table.size_bytes()}", "", "", "", ""))
    for unit in sorted(engine.units, key=lambda unit: (unit.stratum, unit.level, unit.number)):
        for name in unit.component:
            table = engine.present.table(name)
            rows.append(
                (f"stratum {unit.stratum}: {_shown(name)}", f"{len(table)}", f"{table.size_bytes()}",
                 f"{unit.runs}", "", "", f"{unit.seconds * 1000:.2f}")
            )  # fmt: skip
        rows += [
            (f"  rule {rule.form.number}", "", "", "", f"{len(rule)}", f"{rule.found}",
             f"{rule.seconds * 1000:.2f}")
            for rule in (unit.rules if isinstance(unit, Unit) else ())
        ]  # fmt: skip
    return _aligned(rows)


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return [
        "  " + "  ".join(
            cell.ljust(width) if at == 0 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]  # fmt: skip
