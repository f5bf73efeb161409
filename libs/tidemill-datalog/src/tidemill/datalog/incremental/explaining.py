"""What an incremental engine does with a program, in words: strata, joins, arrangements, and where
time goes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidemill.datalog.ast import Rule
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.evaluation.compiled import scope_of
from tidemill.datalog.evaluation.joins import Planner
from tidemill.datalog.evaluation.profile import Work
from tidemill.datalog.evaluation.words import absent_text, join_lines, join_text, looked_up
from tidemill.datalog.formatter import format_rule
from tidemill.datalog.incremental.chains import chain_of
from tidemill.datalog.incremental.engine import IncrementalEngine
from tidemill.datalog.incremental.folding import Folded
from tidemill.datalog.incremental.looped import LoopedUnit
from tidemill.datalog.incremental.matches import Matches
from tidemill.datalog.incremental.program import AnyUnit
from tidemill.datalog.incremental.shared import JoinUnit
from tidemill.datalog.incremental.unit import Unit
from tidemill.datalog.logical.forms import RuleForm, Variable
from tidemill.datalog.logical.plan import NEXT, SENT
from tidemill.datalog.logical.words import aligned, scan_lines
from tidemill.datalog.tables import Readable


def explain_plan(engine: IncrementalEngine) -> list[str]:
    """Lines that say what is read, and for each stratum what is derived how: the joins of each kind
    of change.

    The joins are those for the facts that the engine holds; for an empty one, those it would begin
    with.
    """
    checked = engine.checked
    lines = ["strata"]
    inputs = [name for name in checked.inputs if name in checked.columns]
    if inputs:
        lines.append(f"  inputs: {', '.join(sorted(inputs))}")
    for stratum in sorted({unit.stratum for unit in engine.units}):
        units = [unit for unit in engine.units if unit.stratum == stratum]
        names = [name for u in units if not isinstance(u, JoinUnit) for name in u.component]
        if names:
            lines.append(f"  {stratum}: {', '.join(map(_shown, names))}")
    scans = scan_lines(engine.plan)
    lines += ["", "reads", *scans] if scans else []
    lines += ["", "plan"]
    rules = {rule.number: rule for rule in checked.program.rules}
    for unit in sorted(engine.units, key=lambda unit: (unit.stratum, unit.level, unit.number)):
        lines.append(
            f"  stratum {unit.stratum}: {', '.join(map(_shown, unit.component))}, {_way(unit)}"
        )
        if isinstance(unit, JoinUnit):
            lines.append(f"    {join_text(unit.shared.join, checked)}")
            lines += _joins_lines(unit.rules[0], checked)
        elif isinstance(unit, LoopedUnit):
            for form in unit.forms:
                lines += [*_form_lines(form, rules), *_chain_lines(form, checked)]
        elif not isinstance(unit, Unit):
            for compiled in unit.compiled:
                lines += _planned_lines(compiled.form, engine, rules)
        else:
            for matches in unit.every_rule:
                if not matches.predicate.startswith("#clock"):
                    lines += _matched_lines(matches, rules, engine.present.around.checked)
    lines += _left_lines(engine)
    lines += ["", "arrangements", *_arrangement_lines(engine)]
    return lines


def _left_lines(engine: IncrementalEngine) -> list[str]:
    """The joins that several rules have and each does for itself."""
    lines = []
    for judged in engine.shares.left:
        text = join_text(judged.join, engine.checked)
        lines += [
            f"  {text}, by {_rules_text(judged.join.rules)}:",
            f"    to keep about {judged.rows:.0f} solutions takes more than it saves",
        ]
    return ["", "joined by each rule", *lines] if lines else []


def _rules_text(numbers: Sequence[int]) -> str:
    *first, last = map(str, numbers)
    return f"rules {', '.join(first)} and {last}"


def _shown(name: str) -> str:
    if name.startswith(NEXT):
        return f"{name.removeprefix(NEXT)} @next"
    return f"{name.removeprefix(SENT)} @async" if name.startswith(SENT) else name


def _way(unit: AnyUnit) -> str:
    if isinstance(unit, JoinUnit):
        return f"joined once for {_rules_text(unit.shared.join.rules)}"
    if isinstance(unit, LoopedUnit):
        return "followed; recursive: by differences of its rounds"
    if not isinstance(unit, Unit):
        return "evaluated anew when something it reads changes"
    if unit.recursive:
        return "followed; recursive: what may stand on itself is deleted and derived again"
    return "followed"


def _form_lines(form: RuleForm, rules: Mapping[int, Rule]) -> list[str]:
    """The text of a rule."""
    rule = rules.get(form.number)
    first, *rest = format_rule(rule).splitlines() if rule is not None else ["made by the planner"]
    return [f"    rule {form.number}: {first}", *(f"      {line}" for line in rest)]


def _matched_lines(
    matches: Matches | Folded, rules: Mapping[int, Rule], checked: CheckedProgram
) -> list[str]:
    """The joins that changes of each atom run, as they are bound to the tables."""
    form = matches.form
    lines = [*_form_lines(form, rules), *_joins_lines(matches, checked)]
    return lines + [f"      unless {absent_text(absent, checked)}" for absent in form.absent]


def _joins_lines(matches: Matches | Folded, checked: CheckedProgram) -> list[str]:
    return [
        f"      {line}"
        for atom in matches.joins.ordinary
        for line in join_lines(matches.form, matches.joins.join(atom).plan, checked, "on")
    ]


def _chain_lines(form: RuleForm, checked: CheckedProgram) -> list[str]:
    """The joins of a rule that is kept by rounds: one collection with the next, whatever changes."""
    order = chain_of(form) or ()
    bound: set[str] = set()
    steps = []
    for place, at in enumerate(order):
        atom = form.atoms[at]
        shared = [
            position
            for position, term in enumerate(atom.terms, 1)
            if isinstance(term, Variable) and term.name in bound
        ]
        by = looked_up(atom.predicate, shared, None, checked) if place else ""
        steps.append(atom.predicate + by)
        bound.update(atom.variables())
    return [f"      joined {' -> '.join(steps)}"]


def _planned_lines(
    form: RuleForm, engine: IncrementalEngine, rules: Mapping[int, Rule]
) -> list[str]:
    """The join of a rule that is evaluated anew, in the order that the sizes of now ask for."""
    present, checked = engine.present, engine.checked
    ordinary = [i for i, atom in enumerate(form.atoms) if not atom.is_clock]
    tables: dict[int, Readable] = {i: present.table(form.atoms[i].predicate) for i in ordinary}
    lines = _form_lines(form, rules)
    if form.atoms:
        plan = Planner(form, tables, scope_of(form, tables, present.around), None).plan()
        lines += [f"      {line}" for line in join_lines(form, plan, checked, "")]
    return lines + [f"      unless {absent_text(absent, checked)}" for absent in form.absent]


def _arrangement_lines(engine: IncrementalEngine) -> list[str]:
    lines = []
    for name, table in sorted(engine.present.tables.items()):
        for positions, sorted_by, keys in table.arrangements():
            by = looked_up(name, positions, sorted_by, engine.present.around.checked)
            lines.append(f"  {_shown(name)}{by}: {len(table)} rows under {keys} keys")
    return lines or ["  none"]


def explain_analysis(engine: IncrementalEngine) -> list[str]:
    """Lines of a table: rows, bytes, runs and time of every predicate and rule, by stratum.

    For an engine that was given a timer. Time in joins is part of the time of the unit. Recursions
    that are kept by rounds say what their histories hold, in a line for all their rules.
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
        rows += _rule_rows(engine, unit)
    return aligned(rows)


def _rule_rows(engine: IncrementalEngine, unit: AnyUnit) -> list[tuple[str, ...]]:
    """What the rules of one unit took."""
    if isinstance(unit, JoinUnit):
        (mine,) = unit.rules
        took = f"{mine.seconds * 1000:.2f}"
        return [("  solutions", "", "", "", f"{len(mine)}", f"{mine.found}", took)]
    if isinstance(unit, Unit):
        return [
            (f"  rule {rule.form.number}", "", "", "", f"{len(rule)}", f"{rule.found}",
             f"{rule.seconds * 1000:.2f}")
            for rule in unit.every_rule
        ]  # fmt: skip
    if isinstance(unit, LoopedUnit):
        numbers = ", ".join(str(form.number) for form in unit.forms)
        return [(f"  rounds of rule {numbers}", "", f"{unit.bytes_held}", "", "", "", "")]
    profile = engine.present.around.profile
    rows: list[tuple[str, ...]] = []
    for rule in unit.compiled:
        work = Work() if profile is None else profile.work(rule.form.number)
        rows.append(
            (f"  rule {rule.form.number}", "", "", f"{work.runs}", "", f"{work.found}",
             f"{work.seconds * 1000:.2f}")
        )  # fmt: skip
    return rows
