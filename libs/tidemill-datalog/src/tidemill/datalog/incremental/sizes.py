"""What is known of the facts of inputs before an engine begins, for who has to choose how to keep
them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tidemill.datalog.incremental.facts import FactTable
from tidemill.datalog.incremental.surroundings import Update
from tidemill.datalog.records import Record
from tidemill.datalog.tables import TIME, Key

_SAMPLE = 1_000


@dataclass(frozen=True, slots=True)
class Size:
    """How many facts there are, and how many values each position of the sampled ones has."""

    rows: int
    sampled: int
    values: tuple[int, ...]


class Sizes:
    """The sizes of inputs; what rules derive is taken to be as many as the largest of them.

    Cost: O(updates), and O(columns) for each of a thousand facts of a predicate.
    """

    def __init__(self, known: Mapping[str, Size]) -> None:
        self._known = known
        self._most = max((size.rows for size in known.values()), default=None)

    @classmethod
    def of(cls, updates: Iterable[Update], lent: Iterable[FactTable]) -> Sizes:
        """The sizes of what is to come, and of tables that are there already."""
        rows: Counter[str] = Counter()
        sampled: dict[str, list[Key]] = {}
        for predicate, record, diff in updates:
            if diff <= 0 or not isinstance(record, Record):
                continue
            rows[predicate] += 1
            sample = sampled.setdefault(predicate, [])
            if len(sample) < _SAMPLE:
                sample.append((record.time, *record.arguments))
        for table in lent:
            rows[table.predicate] += len(table)
            sample = sampled.setdefault(table.predicate, [])
            for row in table.rows:
                if len(sample) >= _SAMPLE:
                    break
                sample.append(row[TIME:])
        return cls({name: _size(count, sampled[name]) for name, count in rows.items()})

    def rows(self, predicate: str) -> float | None:
        """How many facts a predicate has; None where there is no input at all."""
        known = self._known.get(predicate)
        return self._most if known is None else known.rows

    def distinct(self, predicate: str, position: int) -> float:
        """How many values a column has: as many as facts where a sample has few twice, else those
        of the sample.
        """
        known = self._known.get(predicate)
        if known is None:
            return max(1, self._most or 1)
        if position >= len(known.values):
            return 1
        values = known.values[position]
        if 2 * values > known.sampled:
            return max(1.0, values * known.rows / max(1, known.sampled))
        return max(1, values)


def _size(rows: int, sample: list[Key]) -> Size:
    return Size(rows, len(sample), tuple(len(set(column)) for column in zip(*sample, strict=True)))


__all__ = ["Size", "Sizes"]
