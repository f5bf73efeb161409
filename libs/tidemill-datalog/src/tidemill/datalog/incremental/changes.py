"""What an advance has changed: facts one by one, or many of one predicate as columns, and errors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from tidemill.datalog.presence import Instant
from tidemill.datalog.records import Record

Words: TypeAlias = "npt.NDArray[np.uint64]"
Diffs: TypeAlias = "npt.NDArray[np.int64]"
Array: TypeAlias = "npt.NDArray[Any]"  # Any: int64, float64, bool or object, by the kind

_DTYPES: dict[str, type] = {"int": np.int64, "float": np.float64, "bool": np.bool_, "text": object}
_NOTHING: dict[str, Any] = {"int": 0, "float": 0.0, "bool": False, "text": None}
_HALF = np.uint64(32)


@dataclass(frozen=True, slots=True)
class FactChange:
    """A record of a derived predicate begins (`diff` 1) or ends (-1) at an instant."""

    at: Instant
    record: Record
    diff: int


@dataclass(frozen=True, slots=True)
class ErrorChange:
    """An error begins or ends at an instant; `rule` is the first rule with that text."""

    at: Instant
    text: str
    rule: int
    diff: int


class Numbering:
    """Numbers for the values of one kind, in the order in which they first came; they are kept."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.values: list[Any] = []
        self._numbers: dict[Any, int] = {}
        self._array: Array = np.empty(16, _DTYPES[kind])
        self._filled = 0
        self._null: int | None = None

    def number(self, value: Any) -> int:
        """The number of a value."""
        known = self._numbers.get(value)
        if known is None:
            known = self._numbers[value] = len(self.values)
            self.values.append(value)
            if value is None:
                self._null = known
        return known

    def array_of(self, numbers: Words) -> tuple[Array, npt.NDArray[np.bool_] | None]:
        """The values of numbers, and where there is none; None for the latter if all are there."""
        count = len(self.values)
        if count > self._filled:
            if count > len(self._array):
                self._array = np.resize(self._array, 2 * count)
            nothing = _NOTHING[self.kind]
            for at in range(self._filled, count):
                value = self.values[at]
                self._array[at] = nothing if value is None else value
            self._filled = count
        nulls = None if self._null is None else numbers == np.uint64(self._null)
        return self._array[numbers], nulls


@dataclass(frozen=True, slots=True)
class FactBlock:
    """Timeless facts of one predicate that begin or end at one instant, as columns of numbered
    values.

    Nothing in it ends by itself or carries anything, and no fact is there twice.
    """

    at: Instant
    predicate: str
    numberings: tuple[Numbering, ...]
    numbers: tuple[Words, ...]
    diffs: Diffs

    def __len__(self) -> int:
        return len(self.diffs)

    def take(self, rows: npt.NDArray[Any]) -> FactBlock:
        """The rows with these places, or those where a mask is true."""
        numbers = tuple(column[rows] for column in self.numbers)
        return FactBlock(self.at, self.predicate, self.numberings, numbers, self.diffs[rows])

    def arguments(self) -> Iterator[tuple[Any, ...]]:
        """The arguments of every fact."""
        columns = []
        for numbering, numbers in zip(self.numberings, self.numbers, strict=True):
            values = numbering.values
            columns.append([values[number] for number in numbers.tolist()])
        return zip(*columns, strict=True)

    def arrays(self) -> list[tuple[Array, npt.NDArray[np.bool_] | None]]:
        """The columns as arrays of int64, float64, bool or objects (texts), each with where it is
        null.
        """
        return [
            numbering.array_of(numbers)
            for numbering, numbers in zip(self.numberings, self.numbers, strict=True)
        ]

    def changes(self) -> Iterator[FactChange]:
        """The changes one by one."""
        for arguments, diff in zip(self.arguments(), self.diffs.tolist(), strict=True):
            yield FactChange(self.at, Record(self.predicate, arguments), diff)


def netted(blocks: Sequence[FactBlock]) -> FactBlock:
    """Blocks of one predicate as one: what they change together, at the instant of the last.

    Cost: O(n log n); nothing for one block.
    """
    last = blocks[-1]
    if len(blocks) == 1:
        return last
    columns = [np.concatenate(parts) for parts in zip(*(b.numbers for b in blocks), strict=True)]
    diffs = np.concatenate([block.diffs for block in blocks])
    words = columns[0] if len(columns) == 1 else columns[0] << _HALF | columns[1]
    order = np.argsort(words, kind="stable")
    ordered = words[order]
    firsts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    sums = np.add.reduceat(diffs[order], firsts)
    kept = np.flatnonzero(sums)
    places = order[firsts[kept]]
    numbers = tuple(column[places] for column in columns)
    return FactBlock(last.at, last.predicate, last.numberings, numbers, sums[kept])


class FactChanges(Sequence[FactChange]):
    """Changes of facts in order.

    Those that come as blocks become records only if they are looked at so.
    """

    def __init__(self) -> None:
        self._parts: list[list[FactChange] | FactBlock] = []
        self._all: list[FactChange] | None = None

    def add(self, part: list[FactChange] | FactBlock) -> None:
        """These come next."""
        if len(part):
            self._parts.append(part)
            self._all = None

    @property
    def parts(self) -> Sequence[list[FactChange] | FactBlock]:
        """The changes as they came, in order."""
        return self._parts

    def of(self, predicate: str) -> tuple[list[FactBlock], list[FactChange]]:
        """The changes of one predicate: those in blocks, and the others."""
        blocks, others = [], []
        for part in self._parts:
            if isinstance(part, list):
                others += [change for change in part if change.record.predicate == predicate]
            elif part.predicate == predicate:
                blocks.append(part)
        return blocks, others

    def _listed(self) -> list[FactChange]:
        if self._all is None:
            if len(self._parts) == 1 and isinstance(self._parts[0], list):
                self._all = self._parts[0]
            else:
                self._all = []
                for part in self._parts:
                    self._all.extend(part if isinstance(part, list) else part.changes())
        return self._all

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def __iter__(self) -> Iterator[FactChange]:
        return iter(self._listed())

    @overload
    def __getitem__(self, at: int) -> FactChange: ...
    @overload
    def __getitem__(self, at: slice) -> list[FactChange]: ...
    def __getitem__(self, at: int | slice) -> FactChange | list[FactChange]:
        return self._listed()[at]


@dataclass(frozen=True, slots=True)
class Changes:
    """What an advance has changed, in the order of the instants; at one instant ends come first."""

    facts: FactChanges = field(default_factory=FactChanges)
    errors: list[ErrorChange] = field(default_factory=list)


__all__ = [
    "Changes", "ErrorChange", "FactBlock", "FactChange", "FactChanges", "Numbering", "netted",
]  # fmt: skip
