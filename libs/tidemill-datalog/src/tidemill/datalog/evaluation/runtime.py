"""What generated rules call while they run."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from types import CodeType
from typing import Any

from tidemill.datalog.instants import expiry, tick_at, ticks, usable_clock
from tidemill.datalog.lattices import Lattice, Parafacts, merge_parafacts, without
from tidemill.datalog.logical.expressions import RUNTIME as OPERATORS
from tidemill.datalog.logical.forms import AbsentForm
from tidemill.datalog.presence import BEGINNING, END, Instant, Interval, normalise, subtract
from tidemill.datalog.tables import ANY_VALUE, PARAFACTS, START, STOP, TIME, Row, Table, rows_like
from tidemill.datalog.values import (
    OVERFLOW,
    WRONG_TYPE,
    Failed,
    Value,
    equal,
)


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


def instant(value: Value) -> int:
    """The value as the time of an event.

    Raises: Failed(wrong type), or for infinity Failed(overflow).
    """
    if type(value) is int:
        return value
    if value == END:
        raise Failed(OVERFLOW)
    raise Failed(WRONG_TYPE)


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
