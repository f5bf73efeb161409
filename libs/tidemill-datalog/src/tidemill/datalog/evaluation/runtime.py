"""What generated rules call while they run."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from types import CodeType
from typing import Any

from tidemill.datalog.evaluation.expressions import RUNTIME as OPERATORS
from tidemill.datalog.evaluation.forms import AbsentForm
from tidemill.datalog.evaluation.tables import PARAFACTS, START, STOP, TIME, Readable, Row, Table
from tidemill.datalog.lattices import Lattice, Parafacts, merge_parafacts
from tidemill.datalog.presence import BEGINNING, END, Instant, Interval, normalise, subtract
from tidemill.datalog.values import (
    FLOAT_EXACT_MAX,
    OVERFLOW,
    PERIOD_NOT_POSITIVE,
    WRONG_TYPE,
    Failed,
    Value,
    equal,
)

ANY_VALUE = object()
"""Stands for `_` among the values that an atom under `not` is asked for."""


def between(
    bucket: tuple[list[Any], list[Row]] | None, low: Instant | None, high: Instant | None
) -> Sequence[Row]:
    """The rows of a sorted bucket whose column lies in [low, high]."""
    if bucket is None:
        return ()
    values, rows = bucket
    first = 0 if low is None else bisect_left(values, low)
    last = len(values) if high is None else bisect_right(values, high)
    return rows[first:last]


def usable_clock(offset: Value, period: Value) -> tuple[int, int]:
    """Offset and period of a clock. Raises: Failed where there is no such clock."""
    if type(period) is float or type(offset) is not int or isinstance(period, str | bool):
        raise Failed(WRONG_TYPE)
    if type(period) is not int or period <= 0:
        raise Failed(PERIOD_NOT_POSITIVE)
    return offset, period


def ticks(offset: int, period: int, low: Instant | None, high: Instant) -> Iterable[int]:
    """The times of a clock in [low, high], ascending."""
    if low is None or low <= offset:
        first = offset
    elif low == END:
        return ()
    else:
        first = offset - (offset - int(low)) // period * period
    if high < first:
        return ()
    return range(first, int(high) + 1, period)


def tick_at(offset: int, period: int, time: Value, upper: Instant) -> Sequence[int]:
    """The one time if the clock ticks then and the tick is released, else nothing."""
    if type(time) is not int or time < offset or time >= upper or (time - offset) % period:
        return ()
    return (time,)


def instant(value: Value) -> int:
    """The value as the time of an event.

    Raises: Failed(wrong type), or for infinity Failed(overflow).
    """
    if type(value) is int:
        return value
    if value == END:
        raise Failed(OVERFLOW)
    raise Failed(WRONG_TYPE)


def expiry(value: Value) -> Instant:
    """The value as the end of an event, infinite for none. Raises: Failed(wrong type)."""
    if type(value) is int or value == END:
        return value
    raise Failed(WRONG_TYPE)


def without(parafacts: Parafacts, names: frozenset[str]) -> Parafacts:
    """The parafacts of other lattices than the named ones."""
    if parafacts is None:
        return None
    kept = tuple(item for item in parafacts if item[0] not in names)
    return kept or None


def decorate(
    names: Sequence[str], values: Sequence[Any], lattices: Mapping[str, Lattice]
) -> Parafacts:
    """The inner values of one solution as parafacts; a lattice named twice is merged."""
    decorated: Parafacts = None
    for name, value in zip(names, values, strict=True):
        decorated = merge_parafacts(decorated, ((name, value),), lattices)
    return decorated


def observer(lattices: Mapping[str, Lattice]) -> Callable[[Parafacts, str], Any]:
    """A function that gives what is seen of one lattice, None where a fact does not carry it."""

    def seen(parafacts: Parafacts, name: str) -> tuple[Value, ...] | None:
        if parafacts is not None:
            for mine, inner in parafacts:
                if mine == name:
                    return lattices[name].observe(inner)
        return None

    return seen


def rows_like(table: Readable, wanted: Sequence[Any], widened: Sequence[int] = ()) -> Iterable[Row]:
    """The rows with the wanted arguments, ANY_VALUE for any; whole numbers at `widened` count as
    their floats.

    Cost: a look into an index; for a float beyond 2^53, of which several whole numbers may be one,
    all rows that have the other arguments.
    """
    far = [at for at in widened if is_far(wanted[at - 1])]
    known = [at for at, value in enumerate(wanted, 1) if value is not ANY_VALUE and at not in far]
    rows: Iterable[Row] = table.rows
    if known:
        key = tuple(wanted[at - 1] for at in known)
        rows = table.index(tuple(known)).get(key[0] if len(key) == 1 else key, ())
    if not far:
        return rows
    return [row for row in rows if all(equal(row[TIME + at], wanted[at - 1]) for at in far)]


def is_far(value: object) -> bool:
    """Whether a value is a float that several whole numbers may widen to."""
    return type(value) is float and not -FLOAT_EXACT_MAX < value < FLOAT_EXACT_MAX


def lattice_cover(
    table: Table, absent: AbsentForm, seen: Callable[..., Any]
) -> Callable[[tuple[Any, ...]], list[Interval]]:
    """When facts that carry the asked parafacts are present, for atoms under `not` that match such."""
    arity = len(absent.terms)
    absent_lattices = [(name, len(terms)) for name, terms in absent.lattices]

    def cover(values: tuple[Any, ...]) -> list[Interval]:
        found = []
        for row in rows_like(table, values[:arity], absent.widened):
            at = arity
            for name, size in absent_lattices:
                if not carries(row, name, values[at : at + size], seen):
                    break
                at += size
            else:
                found.append((row[START], row[STOP]))
        return normalise(found)

    return cover


def carries(row: Row, name: str, wanted: Sequence[Any], seen: Callable[..., Any]) -> bool:
    """Whether a row carries a lattice with the wanted values."""
    if name == "time":
        if row[TIME] is None:
            return False
        values: Sequence[Any] = (row[TIME],)
    elif name == "expires":
        values = (row[2],)
    else:
        values = seen(row[PARAFACTS], name)
        if values is None:
            return False
    return all(
        each is ANY_VALUE or equal(each, value) for each, value in zip(wanted, values, strict=True)
    )


def clock_cover(
    absent_lattices: Sequence[tuple[str, int]], upper: Instant, frozen: bool
) -> Callable[[tuple[Any, ...]], list[Interval]]:
    """When a clock event as asked for is present, for clocks under `not`."""

    def cover(values: tuple[Any, ...]) -> list[Interval]:
        offset, period = usable_clock(values[0], values[1])
        times: Iterable[int] = (offset,)
        at = 2
        for name, size in absent_lattices:
            wanted = values[at]
            at += size
            if wanted is ANY_VALUE:
                continue
            if name == "time":
                times = tick_at(offset, period, wanted, upper)
            elif name != "expires" or wanted != END:
                return []
        released = [time for time in times if time < upper]
        return normalise((BEGINNING if frozen else time, END) for time in released)

    return cover


@lru_cache(1 << 12)
def _code_of(text: str) -> CodeType:
    return compile(text, "<rule>", "exec")


def names_of_rule(
    text: str, number: int, constants: Mapping[str, Any], lattices: Mapping[str, Lattice]
) -> dict[str, Any]:
    """The names that the generated text of a rule defines; rules of one shape share their code."""
    names = {**names_of(lattices), **constants, "number": number}
    exec(_code_of(text), names)  # our own text
    return names


def names_of(lattices: Mapping[str, Lattice]) -> dict[str, Any]:
    """The global names of generated code."""
    return {
        **OPERATORS,
        "between": between,
        "usable_clock": usable_clock,
        "ticks": ticks,
        "tick_at": tick_at,
        "instant": instant,
        "expiry": expiry,
        "without": without,
        "seen": observer(lattices),
        "merge": lambda a, b: merge_parafacts(a, b, lattices),
        "decorate": lambda names, values: decorate(names, values, lattices),
        "cut": subtract,
        "any_value": ANY_VALUE,
        "Failed": Failed,
        "once": (0,),
        "empty": (),
        "beginning": BEGINNING,
        "inf": END,
    }
