"""Comparing what the system answered with what the oracle recomputed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pyarrow as pa

from tidemill_flights.oracle import Cell, Rows

SHOWN = 3
"""Rows of a difference that are printed."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two multisets of rows that should be equal: `what` was compared, and what differs."""

    what: str
    expected: int
    found: int
    missing: tuple[tuple[Cell, ...], ...]
    surplus: tuple[tuple[Cell, ...], ...]

    @property
    def equal(self) -> bool:
        return not self.missing and not self.surplus


def compare(
    what: str, expected: Iterable[Sequence[Cell]], found: Iterable[Sequence[Cell]]
) -> Comparison:
    """Compare as multisets; whole numbers and floats of equal value are equal."""
    wanted, got = Counter(map(tuple, expected)), Counter(map(tuple, found))
    return Comparison(
        what,
        wanted.total(),
        got.total(),
        tuple(sorted((wanted - got).elements(), key=repr)),
        tuple(sorted((got - wanted).elements(), key=repr)),
    )


def answer_rows(answer: pa.Table) -> Rows:
    """The rows of a snapshot, each as often as its multiplicity; `_diff` is dropped."""
    columns = [column.to_pylist() for column in answer.columns]
    rows = list(zip(*columns, strict=True))
    if "_diff" not in answer.column_names:
        return rows
    at = answer.column_names.index("_diff")
    return [row[:at] + row[at + 1 :] for row in rows for _ in range(row[at])]


def fired_alarms(path: Path) -> Rows:
    """The alarms in the file of the action: the goal's arguments, then the time of the event."""
    if not path.exists():
        return []
    lines = [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]
    return [(*line["arguments"], line["time"]) for line in lines]


def describe_difference(comparison: Comparison) -> str:
    """The first rows that only one side has, one per line."""
    lines = [f"- {row}" for row in comparison.missing[:SHOWN]]
    lines += [f"+ {row}" for row in comparison.surplus[:SHOWN]]
    hidden = max(0, len(comparison.missing) - SHOWN) + max(0, len(comparison.surplus) - SHOWN)
    return "\n".join([*lines, f"and {hidden} more"] if hidden else lines)
