"""The facts of an input that an engine looks at and does not keep: a version of them, and then the next."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from immutables import Map

from tidemill.datalog.evaluation.tables import Key, Positions, Row
from tidemill.datalog.incremental.facts import FactTable
from tidemill.datalog.incremental.versions import FactVersion, Later, key_at, size_bytes

_SAMPLE = 1_000


class LentTable(FactTable):
    """The facts of the version that the engine has come to.

    Rows and indexes are those of the version, shared with whoever looks at it; buckets sorted by a column, and what is known of
    the rows, are the table's own. Cost: a step to the next version, O(turns · (indexes + 1)).
    """

    def __init__(self, predicate: str, kinds: Sequence[str], version: FactVersion) -> None:
        super().__init__(predicate, kinds)
        self.version = version
        self._now: dict[Positions, IndexNow] = {}
        self._every = RowsNow(self)
        self._rows = version.rows  # type: ignore[assignment]  # a table that is only read may have any mapping
        for row in version.rows.values():
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
            known = self._now[positions] = IndexNow(self.version.index(positions))
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
        return iter(self._table.version.rows.values())

    def __len__(self) -> int:
        return len(self._table.version.rows)


__all__ = ["LentTable"]
