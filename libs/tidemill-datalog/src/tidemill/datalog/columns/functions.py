"""Operators and functions over columns: each row as `tidemill.datalog.values` and `.functions` have
it.

Numbers are computed by columns. Functions of texts, and numbers as text, are computed once for
each different combination of arguments, by the code that a single value takes. A row without a
value holds anything and is flagged as failed. The caller says whether such a row counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.arrangement.kernels import BoolArray
from tidemill.arrangement.kernels.numbering import number
from tidemill.datalog import values
from tidemill.datalog.allowance import Allowance
from tidemill.datalog.columns.calendar import by_seconds, in_utc
from tidemill.datalog.columns.column import Column, Unsuited, Values, constant, words_of
from tidemill.datalog.columns.spelling import LIMITS, MOMENTS
from tidemill.datalog.columns.texts import Texts
from tidemill.datalog.functions import FUNCTIONS
from tidemill.datalog.logical.forms import Type
from tidemill.datalog.signatures import called, negated, operated

Result: TypeAlias = "tuple[Column, BoolArray | None]"
"""The values, and the rows that have none for want of a result; None if there are no such rows."""

ARITHMETIC = frozenset("+-*/%")
NUMBERS = frozenset({Type.INT, Type.FLOAT})
_PLAIN = NUMBERS | {Type.TEXT, Type.BOOL}
_SURE = 2.0**62
"""Products that are less than this as floats fit 64 bits."""
_WHOLE_END = 2.0**63
_ORDERS: Mapping[str, tuple[Callable[..., Any], Callable[..., bool]]] = {
    "<": (np.less, values.less), "<=": (np.less_equal, values.less_equal),
    ">": (np.greater, values.greater), ">=": (np.greater_equal, values.greater_equal),
}  # fmt: skip
ORDERS = frozenset(_ORDERS)
_TESTS: Mapping[str, Callable[..., Any]] = {
    "starts_with": pc.starts_with, "ends_with": pc.ends_with, "contains": pc.match_substring,
}  # fmt: skip


def common(columns: Sequence[Column]) -> list[Values]:
    """Columns of numbers as the operators see them: whole if all are, else floats.

    Raises: Unsuited.
    """
    kinds = {column.kind for column in columns}
    if not kinds <= NUMBERS:
        raise Unsuited
    if len(kinds) == 1:
        return [column.values for column in columns]
    return [column.values.astype(np.float64) for column in columns]


def nulls_of(columns: Sequence[Column]) -> BoolArray | None:
    """The rows in which some column is null, None if there are no such rows."""
    known = [column.nulls for column in columns if column.nulls is not None]
    if not known:
        return None
    nulls: BoolArray = np.logical_or.reduce(known)
    return nulls


def _strict(found: Values, failed: BoolArray | None, nulls: BoolArray | None) -> Result:
    """A result that is null where an argument is."""
    kind = {np.dtype(np.float64): Type.FLOAT, np.dtype(np.bool_): Type.BOOL}.get(
        found.dtype, Type.INT
    )
    if nulls is None:
        return Column(kind, found), failed
    known = np.where(nulls, found.dtype.type(0), found)
    return Column(kind, known, nulls), None if failed is None else failed & ~nulls


def arithmetic(name: str, arguments: Sequence[Column], *, checked: bool) -> Result:
    """`+ - * / %` of two columns; rows are only looked over for failures if `checked`."""
    left, right = common(arguments)
    nulls = nulls_of(arguments)
    if nulls is not None and name in "/%":
        right = np.where(nulls, right.dtype.type(1), right)
    with np.errstate(all="ignore"):
        if left.dtype == np.int64:
            found, failed = _whole(name, left, right, checked)
        else:
            found, failed = _fractional(name, left, right)
    return _strict(found, failed if checked else None, nulls)


def _whole(name: str, a: Values, b: Values, checked: bool) -> tuple[Values, BoolArray | None]:
    if name == "+":
        found = a + b
        return found, ((a ^ found) & (b ^ found)) < 0 if checked else None
    if name == "-":
        found = a - b
        return found, ((a ^ b) & (a ^ found)) < 0 if checked else None
    if name == "*":
        return a * b, _product_overflows(a, b) if checked else None
    failed = None
    if checked:
        failed = b == 0
        if name == "/":
            failed |= (a == values.INT_MIN) & (b == -1)
        b = np.where(failed | (b == -1) & (a == values.INT_MIN), 1, b)
    rest = np.fmod(a, b)
    return (rest if name == "%" else (a - rest) // b), failed


def _product_overflows(a: Values, b: Values) -> BoolArray:
    failed: BoolArray = np.abs(a.astype(np.float64) * b.astype(np.float64)) >= _SURE
    for row in failed.nonzero()[0].tolist():
        failed[row] = not values.INT_MIN <= int(a[row]) * int(b[row]) <= values.INT_MAX
    return failed


def _fractional(name: str, a: Values, b: Values) -> tuple[Values, BoolArray]:
    if name in "/%":
        zero = b == 0
        b = np.where(zero, 1.0, b)
        found = np.true_divide(a, b) if name == "/" else np.fmod(a, b)
        return found, zero | ~np.isfinite(found)
    found = a + b if name == "+" else a - b if name == "-" else a * b
    return found, ~np.isfinite(found)


def typed_arithmetic(
    name: str, arguments: Sequence[Column], texts: Texts, allowance: Allowance
) -> Result:
    """`+ - * / %` and a sign where a column is of a type with an arithmetic of its own.

    Raises: Unsuited.
    """
    kinds = [argument.kind for argument in arguments]
    given = [kind.value for kind in kinds]
    found = negated(given[0]) if name == "neg" else operated(name, given[0], given[1])
    kind = Type(found or "any")
    if kind is Type.ANY:
        raise Unsuited
    if name not in "+-" or kind not in LIMITS or kinds[1] is Type.INT or kinds[0] is Type.INT:
        return each_once(_OPERATORS[name], arguments, kind, texts, allowance)
    a, b = (argument.values for argument in arguments)
    words = a + b if name == "+" else a - b  # NB: words of times are far from 64 bits
    least, most = LIMITS[kind]
    failed: BoolArray = (words < least) | (words > most)
    nulls = nulls_of(arguments)
    words = np.where(failed if nulls is None else failed | nulls, 0, words)
    if nulls is not None:
        failed &= ~nulls
    return Column(kind, words, nulls), failed if failed.any() else None


_OPERATORS: Mapping[str, Callable[..., Any]] = {
    "+": values.add, "-": values.subtract, "*": values.multiply, "/": values.divide,
    "%": values.remainder, "neg": values.negate,
}  # fmt: skip


def order(sign: str, arguments: Sequence[Column], texts: Texts, allowance: Allowance) -> Result:
    """A comparison by order, false where a side is null."""
    by_columns, by_values = _ORDERS[sign]
    if arguments[0].kind in NUMBERS:
        nulls = nulls_of(arguments)
        truth = by_columns(*common(arguments))
        return Column(Type.BOOL, truth if nulls is None else truth & ~nulls), None
    if arguments[0].kind is not arguments[1].kind:
        raise Unsuited
    if arguments[0].kind in MOMENTS:
        nulls = nulls_of(arguments)
        truth = by_columns(arguments[0].values, arguments[1].values)
        return Column(Type.BOOL, truth if nulls is None else truth & ~nulls), None
    return each_once(by_values, arguments, Type.BOOL, texts, allowance)


def function(name: str, arguments: Sequence[Column], texts: Texts, allowance: Allowance) -> Result:
    """A function of the language. Raises: Unsuited for types that it does not take."""
    kinds = {argument.kind for argument in arguments}
    if name == "is_null":
        return Column(Type.BOOL, ~arguments[0].known), None
    if name == "coalesce":
        return _coalesce(arguments), None
    if kinds <= NUMBERS:
        if name in _OF_NUMBERS:
            found, failed = _OF_NUMBERS[name](*common(arguments))
            return _strict(found, failed, nulls_of(arguments))
        if name in ("least", "greatest"):
            pick = np.minimum if name == "least" else np.maximum
            return _strict(pick.reduce(common(arguments)), None, nulls_of(arguments))
        if name == "bucket" and kinds == {Type.INT}:
            return _bucket(arguments)
    known = FUNCTIONS[name]
    kind = Type.FLOAT if name == "bucket" else Type(known.gives)
    if known.takes is not None or kind is Type.ANY or not kinds <= _PLAIN:
        given = [argument.kind.value for argument in arguments]
        kind = Type(called(known, given) or known.gives)
    if name in ("least", "greatest") and len(kinds) == 1:
        kind = arguments[0].kind
    if kind is Type.ANY:
        raise Unsuited
    if name in _TESTS or name == "length":
        return _tested(name, arguments, kind, texts, allowance)
    words = in_utc(name, arguments, texts)
    if words is not None:
        return Column(kind, words, arguments[0].nulls), None
    arguments = by_seconds(name, arguments, texts)
    return each_once(FUNCTIONS[name].evaluate, arguments, kind, texts, allowance)


def _negated(x: Values) -> tuple[Values, BoolArray | None]:
    return -x, x == values.INT_MIN if x.dtype == np.int64 else None


def _absolute(x: Values) -> tuple[Values, BoolArray | None]:
    return np.abs(x), x == values.INT_MIN if x.dtype == np.int64 else None


def _to_whole(
    rounding: Callable[[Values], Values],
) -> Callable[[Values], tuple[Values, BoolArray | None]]:
    def convert(x: Values) -> tuple[Values, BoolArray | None]:
        if x.dtype == np.int64:
            return x, None
        found = rounding(x)
        failed: BoolArray = ~((found >= -_WHOLE_END) & (found < _WHOLE_END))
        return np.where(failed, 0.0, found).astype(np.int64), failed

    return convert


def _half_away_from_zero(x: Values) -> Values:
    lower = np.floor(np.abs(x))
    rounded: Values = np.copysign(lower + (np.abs(x) - lower >= 0.5), x)
    return rounded


_OF_NUMBERS: Mapping[str, Callable[..., tuple[Values, BoolArray | None]]] = {
    "neg": _negated,
    "abs": _absolute,
    "floor": _to_whole(np.floor),
    "ceil": _to_whole(np.ceil),
    "round": _to_whole(_half_away_from_zero),
    "int": _to_whole(np.trunc),
    "float": lambda x: (x.astype(np.float64), None),
}
COMPUTED = frozenset(FUNCTIONS) | {"neg"}


def _bucket(arguments: Sequence[Column]) -> Result:
    value, size = (argument.values for argument in arguments)
    failed = size <= 0
    found = value - np.mod(value, np.where(failed, 1, size))
    return _strict(found, failed | (found > value), nulls_of(arguments))


def _coalesce(arguments: Sequence[Column]) -> Column:
    kinds = {argument.kind for argument in arguments}
    if kinds == NUMBERS:
        widened = common(arguments)
        arguments = [
            Column(Type.FLOAT, found, argument.nulls)
            for found, argument in zip(widened, arguments, strict=True)
        ]
    elif len(kinds) > 1:
        raise Unsuited
    chosen = arguments[0]
    for other in arguments[1:]:
        if chosen.nulls is None:
            break
        nulls = None if other.nulls is None else chosen.nulls & other.nulls
        chosen = Column(chosen.kind, np.where(chosen.nulls, other.values, chosen.values), nulls)
    return chosen


def _tested(
    name: str, arguments: Sequence[Column], kind: Type, texts: Texts, allowance: Allowance
) -> Result:
    """A test of texts by one text or their lengths, by Arrow, once for each different text."""
    column = arguments[0]
    if {argument.kind for argument in arguments} != {Type.TEXT}:
        raise Unsuited
    if not len(column) or constant(column) or not all(map(constant, arguments[1:])):
        return each_once(FUNCTIONS[name].evaluate, arguments, kind, texts, allowance)
    ids, rows = number(np.stack(words_of([column]), axis=1))
    firsts = column.take(rows)
    different = texts.arrow(firsts.values, firsts.nulls)
    if name == "length":
        found = pc.utf8_length(different)
    else:
        found = _TESTS[name](different, texts.texts(arguments[1].values[:1])[0])
    found = found.cast(pa.int64() if kind is Type.INT else pa.bool_())
    answers = pc.fill_null(found, pa.scalar(0).cast(found.type))
    return _strict(answers.to_numpy(zero_copy_only=False)[ids], None, column.nulls)


def each_once(
    evaluate: Callable[..., Any],
    arguments: Sequence[Column],
    kind: Type,
    texts: Texts,
    allowance: Allowance,
) -> Result:
    """A function of values, for each combination of arguments once.

    Cost: O(n), and a call for each different combination.
    """
    rows = len(arguments[0])
    if not rows:
        return Column.of_values(kind, [], texts), None
    changing = [column for column in arguments if not constant(column)]
    if changing:
        ids, firsts = number(np.stack(words_of(changing), axis=1))
    else:
        firsts, ids = np.zeros(1, np.int64), np.zeros(rows, np.int64)
    found: list[Any] = []
    failures: list[int] = []
    for given in zip(*(column.take(firsts).python(texts) for column in arguments), strict=True):
        try:
            found.append(evaluate(*given))
            if kind is Type.TEXT:
                allowance.keep(found[-1])
        except values.Failed:
            failures.append(len(found))
            found.append(None)
    if kind is Type.TEXT:
        texts.made += sum(len(text) for text in found if text is not None)
    column = Column.of_values(kind, found, texts)
    if not failures:
        return column.take(ids), None
    failed = np.zeros(len(found), np.bool_)
    failed[failures] = True
    if column.nulls is not None and not (column.nulls & ~failed).any():
        column = replace(column, nulls=None)
    return column.take(ids), failed[ids]


__all__ = [
    "ARITHMETIC", "COMPUTED", "NUMBERS", "ORDERS", "Result", "arithmetic", "common", "function",
    "nulls_of", "order", "typed_arithmetic",
]  # fmt: skip
