"""Plans in words: expressions, tests and the columns that joins look into, by the names that
programs give them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from tidemill.datalog import ast
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.evaluation.forms import (
    WIDEN,
    AbsentForm,
    Constant,
    Expression,
    RuleForm,
    Variable,
    Wildcard,
)
from tidemill.datalog.evaluation.joins import Plan, Step
from tidemill.datalog.evaluation.logical import LogicalPlan
from tidemill.datalog.evaluation.scans import AllOf, AnyOf, Scan, Test
from tidemill.datalog.evaluation.sharing import CommonJoin
from tidemill.datalog.formatter import format_expression

_NOWHERE = ast.Span(1, 1, 1, 1)
_SAME: Mapping[str, str] = MappingProxyType({})


def expression_text(expression: Expression | Wildcard, names: Mapping[str, str] = _SAME) -> str:
    """An expression as a program would write it; `names` are shown in place of variables."""
    return format_expression(_written(expression, names))


def _written(expression: Expression | Wildcard, names: Mapping[str, str]) -> ast.Expression:
    if isinstance(expression, Wildcard):
        return ast.Wildcard(_NOWHERE)
    if isinstance(expression, Constant):
        return ast.Literal(expression.value, _NOWHERE)  # type: ignore[arg-type]  # programs hold no sets
    if isinstance(expression, Variable):
        return ast.Variable(names.get(expression.name, expression.name), _NOWHERE)
    parts = tuple(_written(argument, names) for argument in expression.arguments)
    if expression.name == WIDEN:
        return parts[0]
    if expression.name == "neg":
        return ast.Unary("-", parts[0], _NOWHERE)
    if expression.name.isidentifier():
        return ast.Call(expression.name, parts, _NOWHERE, _NOWHERE)
    return ast.Binary(expression.name, parts[0], parts[1], _NOWHERE, _NOWHERE)


def column_name(predicate: str, position: int, checked: CheckedProgram) -> str:
    """The name of a column: `time` for position 0, then the arguments, `c0`, `c1`, … where they
    have none.
    """
    if position == 0:
        return "time"
    columns = checked.columns.get(predicate, ())
    name = columns[position - 1][0] if position <= len(columns) else ""
    return name or f"c{position - 1}"


def looked_up(
    predicate: str, positions: Sequence[int], sorted_by: int | None, checked: CheckedProgram
) -> str:
    """By which columns rows are found: ` by (a, b) in a range of c`, or ` all`."""
    names = [column_name(predicate, position, checked) for position in positions]
    text = f" by ({', '.join(names)})" if names else ""
    if sorted_by is not None:
        text += f" in a range of {column_name(predicate, sorted_by, checked)}"
    return text or " all"


def join_lines(form: RuleForm, plan: Plan, checked: CheckedProgram, first: str) -> list[str]:
    """One join: its steps in order, each with the conditions that are checked after it."""
    names = _column_variables(form, checked)
    begins = [expression_text(form.conditions[i], names) for i in plan.first]
    texts = [f" if {' ^ '.join(begins)}"] if begins else []
    for number, step in enumerate(plan.steps):
        name = (
            form.atoms[step.atom].predicate if first and not number else _step(form, step, checked)
        )
        conditions = [expression_text(form.conditions[i], names) for i in step.conditions]
        texts.append(name + (f" if {' ^ '.join(conditions)}" if conditions else ""))
    return [f"{first} {' -> '.join(texts)}".strip()]


def _step(form: RuleForm, step: Step, checked: CheckedProgram) -> str:
    atom = form.atoms[step.atom]
    if atom.is_clock:
        return "clock, ticks in a range" if step.limits else "clock"
    return atom.predicate + looked_up(atom.predicate, step.positions, step.range_column, checked)


def join_text(join: CommonJoin, checked: CheckedProgram) -> str:
    """A join that rules have in common, with the variables of the first of them."""
    names = _column_variables(join.uses[0].form, checked)
    atoms = []
    for atom in join.atoms:
        terms = ", ".join(expression_text(term, names) for term in atom.terms)
        marks = [f" @{name}({expression_text(of[0], names)})" for name, of in atom.lattices]
        atoms.append(f"{atom.predicate}({terms}){''.join(marks)}")
    guards = [expression_text(condition, names) for condition in join.conditions]
    return " ^ ".join(atoms) + (f" if {' ^ '.join(guards)}" if guards else "")


def _column_variables(form: RuleForm, checked: CheckedProgram) -> dict[str, str]:
    """The names of columns for the variables that stand for a computed term of an atom."""
    names = {}
    for atom in form.atoms:
        for position, term in enumerate(atom.terms, 1):
            if isinstance(term, Variable) and term.name.startswith("#"):
                column = column_name(atom.predicate, position, checked)
                names[term.name] = f"{atom.predicate}.{column}"
        for lattice, terms in atom.lattices:
            names |= {
                term.name: f"{atom.predicate}.{lattice}"
                for term in terms
                if isinstance(term, Variable) and term.name.startswith("#")
            }
    return names


def absent_text(absent: AbsentForm, checked: CheckedProgram) -> str:
    """Where an atom under `not` is looked for."""
    if absent.is_clock:
        return "clock"
    positions = [position for position, _ in absent.columns()]
    return absent.predicate + looked_up(absent.predicate, positions, None, checked)


def scan_lines(plan: LogicalPlan) -> list[str]:
    """What is read of each input: the columns that are looked at, and which rows can matter."""
    lines = []
    for name, scan in sorted(plan.scans.items()):
        names = [column_name(name, position, plan.checked) for position in scan.columns]
        whole = len(names) == len(plan.checked.columns[name])
        columns = "all columns" if whole else f"({', '.join(names)})" if names else "no column"
        lines.append(f"  {name}: {columns}{_where(scan, plan.checked)}")
    return lines


def _where(scan: Scan, checked: CheckedProgram) -> str:
    if scan.wanted is None:
        return ""
    return f" where {test_text(scan.wanted, scan.predicate, checked)}"


def test_text(test: Test, predicate: str, checked: CheckedProgram) -> str:
    """A test on the columns of a predicate, as a guard would be written."""
    if isinstance(test, AllOf | AnyOf):
        sign = " && " if isinstance(test, AllOf) else " || "
        parts = [test_text(part, predicate, checked) for part in test.tests]
        nested = [isinstance(part, AllOf | AnyOf) for part in test.tests]
        return sign.join(f"({p})" if n else p for p, n in zip(parts, nested, strict=True))
    column = column_name(predicate, test.position, checked)
    return f"{column} {test.sign} {expression_text(Constant(test.value))}"
