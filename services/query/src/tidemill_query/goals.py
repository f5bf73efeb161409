"""A goal over rows: which columns are shown, which are fixed, which have to be equal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc

from tidemill.arrangement.column_types import arrow_type
from tidemill.arrangement.updates import DIFF
from tidemill.catalog.directory import Readable
from tidemill.datalog import ast
from tidemill.datalog.goals import goal_over
from tidemill.datalog.logical.scans import all_of, compared
from tidemill.datalog.parser import parse
from tidemill.datalog.pushdown import expression_of
from tidemill.datalog.records import Value, parse_record
from tidemill.datalog.values import widen
from tidemill.errors import UsageError
from tidemill.time.typed import DIGITS_MAX, SCALE_MAX, Json

LANES = ("_time", "_diff")
_DECIMALS = pa.decimal256(2 * DIGITS_MAX, SCALE_MAX)
"""Decimal numbers of every column: Arrow compares two of one type exactly, and others not."""

SQL = ("select", "with")
"""First words of what people write who mean SQL."""


@dataclass(frozen=True, slots=True)
class RowGoal:
    """A goal as a filter and a projection of rows.

    `fixed` are columns with the value they have, of the very type of the column. `widened` are
    columns of whole numbers that equal a float. `shown` are the answer's columns, each with the
    column it comes from. `alike` are pairs of columns with equal values. `carried` are columns that
    are null or false where a row lacks a parafact of the goal. `never` says that no row has a value
    of the goal, such as a decimal number with more digits than its column.
    """

    readable: Readable
    fixed: Mapping[str, Value]
    widened: tuple[tuple[str, float], ...]
    shown: tuple[tuple[str, str], ...]
    alike: tuple[tuple[str, str], ...]
    carried: tuple[str, ...] = ()
    never: bool = False

    @property
    def where(self) -> pc.Expression | None:
        """A filter that every row of the answer passes, where columns have literal values."""
        kinds = {name: (at, kind) for at, (name, kind) in enumerate(self.readable.columns, 1)}
        names = [name for name, _ in self.readable.columns]
        test = all_of(compared(*kinds[name], "==", value) for name, value in self.fixed.items())
        return None if test is None else expression_of(test, names, None)

    def select(self, rows: pa.Table) -> pa.Table:
        """The rows that match, with the answer's columns and whatever lanes there are."""
        if self.never:
            rows = rows.slice(0, 0)
        for name, value in self.fixed.items():
            rows = rows.filter(_equal(rows[name], value, name))
        for name, number in self.widened:
            rows = rows.filter(pc.equal(_floats(rows[name]), number))
        for name in self.carried:
            column = rows[name]
            rows = rows.filter(column if column.type == pa.bool_() else pc.is_valid(column))
        for left, right in self.alike:
            rows = rows.filter(_same(rows[left], rows[right]))
        lanes = [lane for lane in LANES if lane in rows.column_names]
        arrays = [rows[source] for _, source in self.shown] + [rows[lane] for lane in lanes]
        return pa.table(arrays, names=[*(name for name, _ in self.shown), *lanes])

    def answer(self, rows: pa.Table) -> pa.Table:
        """The rows that match, in the order of the answer's columns."""
        found = self.select(rows)
        order = [(column, "ascending") for column in found.column_names if column != DIFF]
        return found.sort_by(order) if order else found


def _floats(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Numbers as the floats that they are beside floats.

    Raises: UsageError for what is no number.
    """
    try:
        return column.cast(pa.float64(), safe=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise UsageError(
            f"goal refused: a column of {column.type} never equals a float", reason="InvalidGoal"
        ) from error


def _holds(kind: str, value: Decimal) -> bool:
    """Whether a column of decimal numbers may have the value."""
    try:
        pa.scalar(value, arrow_type(kind))
    except (pa.ArrowInvalid, KeyError):
        return False
    return True


def _stored(value: Value) -> Value:
    """The value as Arrow takes it."""
    return value.text if isinstance(value, Json) else value


def _equal(column: pa.ChunkedArray, value: Value, name: str) -> pa.ChunkedArray:
    """A mask of the rows with this value in a column. Raises: UsageError for one that it cannot
    hold.
    """
    if value is None:
        return pc.is_null(column)
    try:
        return pc.equal(column, pa.scalar(value, column.type))
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise UsageError(
            f"goal refused: the column {name} cannot hold {value!r}: {error}", reason="InvalidGoal"
        ) from error


def _same(left: pa.ChunkedArray, right: pa.ChunkedArray) -> pa.ChunkedArray:
    """A mask of the rows with one value in both columns; null equals null, as in the language."""
    if pa.types.is_decimal(left.type) and pa.types.is_decimal(right.type):
        left, right = left.cast(_DECIMALS), right.cast(_DECIMALS)
    elif left.type != right.type:
        left, right = _floats(left), _floats(right)
    nulls = pc.and_(pc.is_null(left), pc.is_null(right))
    return pc.or_(pc.fill_null(pc.equal(left, right), False), nulls)


def prepare_reading() -> None:
    """Load what reads goals and records. Cost: the import of the grammar, the first time."""
    parse("p(1) := q(1);")
    parse_record("p(1)")


def split_name(goal: str) -> tuple[str, str]:
    """(the name before the parenthesis, the goal with its last part alone): `v/late(f)` →
    `late(f)`.

    Raises: UsageError for SQL.
    """
    head, bracket, rest = goal.strip().partition("(")
    words = head.split(None, 1)
    if len(words) == 2 and words[0].lower() in SQL:
        raise UsageError(
            "goal refused: it is SQL, and a goal is a name, or a name with its columns: late(p, d). "
            "`tidemill sql` asks in SQL",
            reason="InvalidGoal",
        )
    if not bracket:
        return head.strip(), ""
    predicate = head.strip().rpartition("/")[2]
    return head.strip(), f"{predicate}({rest}"


def row_goal(goal: str, readable: Readable) -> RowGoal:
    """The filter and projection that a goal stands for. Raises: UsageError, ProgramErrors."""
    arguments = readable.columns[: readable.arguments]
    kinds = dict(readable.columns)
    _, text = split_name(goal)
    beside = {(readable.predicate, name): (kind,) for name, kind in kinds.items()}
    compiled = goal_over(text, {readable.predicate: arguments}, lattices=beside)
    fixed: dict[str, Value] = {}
    widened: list[tuple[str, float]] = []
    bound: dict[str, str] = {}
    alike: list[tuple[str, str]] = []
    never = False

    def take(term: ast.Expression, column: str) -> None:
        nonlocal never
        if isinstance(term, ast.Literal):
            value, kind = term.value, kinds[column]
            if kind in ("int", "any") and type(value) is float:
                widened.append((column, value))
            elif isinstance(value, Decimal) and not _holds(kind, value):
                never = True
            else:
                fixed[column] = widen(value) if kind == "float" else _stored(value)
        elif isinstance(term, ast.Variable):
            if term.name in bound:
                alike.append((bound[term.name], column))
            else:
                bound[term.name] = column

    for term, (column, _) in zip(compiled.terms, arguments, strict=True):
        take(term, column)
    rest = [name for name, _ in readable.columns[readable.arguments :]]
    for lattice, terms in compiled.parafacts:
        if lattice not in rest:
            raise UsageError(f"goal refused: {goal!r} matches @{lattice}, which its records lack")
        if len(terms) != 1:
            raise UsageError(
                f"goal refused: {goal!r} matches the values of @{lattice}, which are one column of text: leave "
                "it out, and read that column",
                reason="InvalidGoal",
            )
        take(terms[0], lattice)
    shown = [*bound.items()]
    matched = [lattice for lattice, _ in compiled.parafacts]
    carried = tuple(readable.tells[name] for name in matched if name in readable.tells)
    shown += [(name, name) for name in rest if name not in (*matched, *carried)]
    return RowGoal(readable, fixed, tuple(widened), tuple(shown), tuple(alike), carried, never)
