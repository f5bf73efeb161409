"""The rows of one predicate put together by columns of their keys."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tidemill.arrangement.kernels import I64Array
from tidemill.arrangement.relational import Buckets, Groups, buckets_of, covers
from tidemill.datalog.columnar.columns import Columns, aligned_words

Positions: TypeAlias = "tuple[int, ...]"


@dataclass(slots=True)
class Arrangements:
    """Rows of one predicate put together by columns: made on first use, shared by all rules that
    ask.
    """

    columns: Columns
    _groups: dict[tuple[Positions, tuple[bool, ...]], Groups] = field(default_factory=dict)
    _buckets: dict[tuple[Positions, tuple[bool, ...]], Buckets] = field(default_factory=dict)
    _covers: dict[Any, tuple[I64Array, I64Array, I64Array]] = field(default_factory=dict)

    def at(self, columns: Columns) -> Arrangements:
        """The same rows at other instants: what their columns say stays, and is shared from now on."""
        return Arrangements(columns, self._groups, self._buckets)

    def grouped(self, positions: Positions, wide: tuple[bool, ...]) -> Groups:
        """The rows numbered by columns of their key; `wide` says which may be null on either side."""
        known = self._groups.get((positions, wide))
        if known is None:
            keys = [self.columns.keys[at] for at in positions]
            known = Groups.of(aligned_words(keys, wide), len(self.columns))
            self._groups[positions, wide] = known
        return known

    def buckets(self, positions: Positions, wide: tuple[bool, ...]) -> Buckets:
        """The rows of each such number."""
        known = self._buckets.get((positions, wide))
        if known is None:
            groups = self.grouped(positions, wide)
            known = self._buckets[positions, wide] = buckets_of(groups.ids, len(groups))
        return known

    def cover(
        self, positions: Positions, wide: tuple[bool, ...]
    ) -> tuple[I64Array, I64Array, I64Array]:
        """When any row of each such number is present."""
        known = self._covers.get((positions, wide))
        if known is None:
            groups = self.grouped(positions, wide)
            known = covers(groups.ids, len(groups), self.columns.start, self.columns.stop)
            self._covers[positions, wide] = known
        return known


__all__ = ["Arrangements", "Positions"]
