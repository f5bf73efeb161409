"""Text of plans: expressions, tests, and columns under the names of programs."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.datalog import ast
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.formatter import format_expression
from tidemill.datalog.logical.forms import WIDEN, Constant, Expression, Variable, Wildcard
from tidemill.datalog.logical.plan import LogicalPlan
from tidemill.datalog.logical.scans import AllOf, AnyOf, Scan, Test

_NOWHERE = ast.Span(1, 1, 1, 1)


def expression_text(expression: Expression | Wildcard) -> str:
    """An expression as a program would write it."""
    return format_expression(_written(expression))


def _written(expression: Expression | Wildcard) -> ast.Expression:
    if isinstance(expression, Wildcard):
        return ast.Wildcard(_NOWHERE)
    if isinstance(expression, Constant):
        return ast.Literal(expression.value, _NOWHERE)  # type: ignore[arg-type]  # programs hold no sets
    if isinstance(expression, Variable):
        return ast.Variable(expression.name, _NOWHERE)
    parts = tuple(map(_written, expression.arguments))
    if expression.name == WIDEN:
        return parts[0]
    if expression.name == "neg":
        return ast.Unary("-", parts[0], _NOWHERE)
    if expression.name.isidentifier():
        return ast.Call(expression.name, parts, _NOWHERE, _NOWHERE)
    return ast.Binary(expression.name, parts[0], parts[1], _NOWHERE, _NOWHERE)


def column_name(predicate: str, position: int, checked: CheckedProgram) -> str:
    """The name of a column: `time` for 0, then the arguments, by default `c0`, `c1`, …."""
    if position == 0:
        return "time"
    columns = checked.columns.get(predicate, ())
    name = columns[position - 1][0] if position <= len(columns) else ""
    return name or f"c{position - 1}"


def scan_lines(plan: LogicalPlan) -> list[str]:
    """Reads of each input as text: the columns that are used, and the rows that can matter."""
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


def aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Rows of cells below each other: the first column to the left, all others to the right."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return [
        "  " + "  ".join(
            cell.ljust(width) if at == 0 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]  # fmt: skip
