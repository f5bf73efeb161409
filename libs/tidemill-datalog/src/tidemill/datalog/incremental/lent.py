"""The facts of an input that an engine looks at and does not keep: a version of them, and then the
next.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from immutables import Map

from tidemill.datalog.incremental.facts import FactTable
from tidemill.datalog.incremental.versions import (
    FactVersion,
    Later,
    Pause,
    key_at,
    paused,
    size_bytes,
)
from tidemill.datalog.tables import Key, Positions, Row

Olds: TypeAlias = "dict[Key, Row | None] | Arrived"
"""The facts of a predicate that have changed, with the row that each had before."""
_SAMPLE = 1_000


class LentTable(FactTable):
    """The facts of the version that the engine has come to.

    Rows and indexes are those of the version, shared with whoever looks at it; buckets sorted by a
    column, and what is known of the rows, are the table's own. Cost: a step to the next version,
    O(turns · (indexes + 1)).
    """

    def __init__(
        self, predicate: str, kinds: Sequence[str], version: FactVersion, pause: Pause | None = None
    ) -> None:
        super().__init__(predicate, kinds)
        self.version = version
        self.pause = pause
        """Asked now and then while all rows are looked at, for as long as it is set."""
        self._now: dict[Positions, IndexNow] = {}
        self._every = RowsNow(self)
        self._rows = version.rows  # type: ignore[assignment]  # a table that is only read may have any mapping
        for row in self._every:
            self._widen(row)

    @property
    def rows(self) -> Collection[Row]:
        """All rows: a view that follows every change."""
        return self._every

    def put(self, key: Key, row: Row | None) -> None:
        """Never: what is lent is not changed."""
        raise AssertionError(f"{self.predicate} is lent")

    def move(self, later: Later) -> list[tuple[Key, Row | None]]:
        """Go to the next version; which facts it changes, and what they were."""
        before, self.version = self.version, later.version
        self._rows = later.version.rows  # type: ignore[assignment]  # as above
        for positions, now in self._now.items():
            known = before.index(positions)
            now.show(later.version.index_after(positions, known, later.turns))
        for _, old, new in later.turns:
            self._move_ranged(old, new)
            if new is not None:
                self._widen(new)
        return [(key, old) for key, old, _ in later.turns]

    def index(self, positions: Positions) -> Mapping[Any, Any]:
        """Rows by their values at `positions`: that of the version, whichever that is."""
        known = self._now.get(positions)
        if known is None:
            index = self.version.index(positions, self.pause)
            known = self._now[positions] = IndexNow(index)
        return known  # type: ignore[return-value]  # joins look up, and do nothing else

    def key_at(self, positions: Positions) -> Callable[[Row], Any]:
        """What stands for a row in the index on `positions`."""
        self.index(positions)
        return key_at(positions)

    def distinct(self, column: int) -> int:
        """How many values a column has: from an index, or from a sample."""
        known = self.version.indexed.get((column,))
        return max(1, len(known)) if known is not None else super().distinct(column)

    def arrangements(self) -> list[tuple[Positions, int | None, int]]:
        """Each index: the columns of its key, the column it is sorted by, how many keys it has."""
        found: list[tuple[Positions, int | None, int]] = [
            (positions, None, len(index)) for positions, index in self._now.items()
        ]
        return found + super().arrangements()

    def size_bytes(self) -> int:
        """About how many bytes the rows and indexes take, whoever else looks at them."""
        return size_bytes(self.version, _SAMPLE)


class Arrived(Mapping[Key, None]):
    """What has changed of a table for who has not looked at it yet: all that it has, when they
    look, has come.
    """

    __slots__ = ("table",)

    def __init__(self, table: LentTable) -> None:
        self.table = table

    def __getitem__(self, key: Key) -> None:
        if self.table.get(key) is None:
            raise KeyError(key)

    def __iter__(self) -> Iterator[Key]:
        return iter(self.table.version.rows)

    def __len__(self) -> int:
        return len(self.table)


class IndexNow:
    """An index that is replaced by the next one, for joins that hold on to it."""

    __slots__ = ("_index", "get")

    def __init__(self, index: Map[Any, Any]) -> None:
        self.show(index)

    def show(self, index: Map[Any, Any]) -> None:
        """From now on it is this one."""
        self._index = index
        self.get = index.get  # its own, so that a look-up costs no call more

    def __contains__(self, key: object) -> bool:
        return key in self._index

    def __len__(self) -> int:
        return len(self._index)


class RowsNow(Collection[Row]):
    """The rows of the version that a table has come to."""

    __slots__ = ("_table",)

    def __init__(self, table: LentTable) -> None:
        self._table = table

    def __contains__(self, row: object) -> bool:
        return any(row == each for each in self)

    def __iter__(self) -> Iterator[Row]:
        return iter(paused(self._table.version.rows.values(), self._table.pause))

    def __len__(self) -> int:
        return len(self._table.version.rows)


__all__ = ["Arrived", "LentTable", "Olds"]
