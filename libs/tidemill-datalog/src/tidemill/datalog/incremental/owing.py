"""The facts of a predicate of which most are only ever counted: rows are made of its columns when
asked for.
"""

from __future__ import annotations

from collections.abc import Collection

from tidemill.datalog.incremental.changes import FactBlock, netted
from tidemill.datalog.incremental.facts import PLAIN, FactTable, row_of
from tidemill.datalog.tables import Key, Row

_BLOCK_WEIGHT, _WEIGHT_MIN = 16, 1 << 16


class OwingTable(FactTable):
    """Facts that come and go in blocks. Whoever joins with it calls `pay` after each of them.

    Making rows of what is owed is put off until `pay`, or until somebody asks. Cost of owing:
    amortised O(log) for each row, since what cancels is taken out now and then; memory some words
    for each fact.
    """

    def __init__(self, predicate: str, kinds: tuple[str, ...]) -> None:
        super().__init__(predicate, kinds)
        self._owed: list[FactBlock] = []
        self._count = 0
        self._weight, self._weight_max = 0, _WEIGHT_MIN

    def owe(self, block: FactBlock) -> None:
        """These facts have come and gone."""
        self._owed.append(block)
        self._count += int(block.diffs.sum())
        self._weight += len(block) + _BLOCK_WEIGHT
        if self._weight > self._weight_max:
            self._owed = [netted(self._owed)]
            self._weight = len(self._owed[0])
            self._weight_max = 2 * self._weight + _WEIGHT_MIN

    def pay(self) -> list[tuple[Key, Row | None]]:
        """Make rows of what is owed: the facts that changed, each with its row before."""
        owed, self._owed, self._weight = self._owed, [], 0
        if not owed:
            return []
        block = netted(owed)
        olds: list[tuple[Key, Row | None]] = []
        for arguments, diff in zip(block.arguments(), block.diffs.tolist(), strict=True):
            key = (None, *arguments)
            olds.append((key, super().get(key)))
            self.put(key, row_of(key, PLAIN) if diff > 0 else None)
        return olds

    @property
    def rows(self) -> Collection[Row]:
        """All rows: a view that follows every change after which `pay` is called."""
        self.pay()
        return super().rows

    def __len__(self) -> int:
        return self._count

    def get(self, key: Key) -> Row | None:
        """The row of a fact, None if it is absent."""
        self.pay()
        return super().get(key)

    def size_bytes(self) -> int:
        """About how many bytes the rows and indexes take, and what is owed in columns."""
        columns = sum(sum(c.nbytes for c in (*b.numbers, b.diffs)) for b in self._owed)
        return super().size_bytes() + columns
