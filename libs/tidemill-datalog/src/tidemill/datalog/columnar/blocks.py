"""Columns of several types in one matrix of words: rows are taken, and put one after the other, in
one call for all columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from itertools import accumulate

import numpy as np

from tidemill.arrangement.kernels import I64Array
from tidemill.datalog.columnar.columns import absent_times, surely_absent
from tidemill.datalog.columns.column import Column, Unsuited
from tidemill.datalog.logical.forms import Type


class Nulls(Enum):
    """Whether a column has nulls; one that is null everywhere takes no line, others with nulls two."""

    NONE = 1
    SOME = 2
    ALL = 0

    __hash__ = object.__hash__  # each is one object; that of enumerations is a call of Python


@dataclass(frozen=True, slots=True)
class Layout:
    """The type of each column, whether it has nulls, and the line of the matrix at which its words
    begin.
    """

    kinds: tuple[tuple[Type, Nulls], ...]
    lines: tuple[int, ...]
    height: int


@lru_cache(1 << 10)
def layout_of(kinds: tuple[tuple[Type, Nulls], ...]) -> Layout:
    """One column after the other."""
    *lines, height = accumulate([nulls.value for _, nulls in kinds], initial=0)
    return Layout(kinds, tuple(lines), height)


@dataclass(frozen=True, slots=True)
class Block:
    """Columns of one length. Shapes: (lines of the layout, rows)."""

    words: I64Array
    layout: Layout

    def __len__(self) -> int:
        rows: int = self.words.shape[1]
        return rows

    @classmethod
    def of(cls, columns: Sequence[Column], rows: int) -> Block:
        """Copy columns. Cost: O(rows · columns)."""
        return _filled(columns, layout_of(tuple([(c.kind, _nulls_of(c)) for c in columns])), rows)

    def column(self, at: int) -> Column:
        """One of the columns, sharing memory as far as its type allows."""
        (kind, nulls), line = self.layout.kinds[at], self.layout.lines[at]
        if nulls is Nulls.ALL:
            return absent_times(len(self))
        words = self.words[line]
        values = words
        if kind is Type.FLOAT:
            values = words.view(np.float64)
        elif kind is Type.BOOL:
            values = words != 0
        return Column(kind, values, None if nulls is Nulls.NONE else self.words[line + 1] != 0)

    def columns(self, first: int, last: int) -> tuple[Column, ...]:
        """Those from one up to another."""
        return tuple([self.column(at) for at in range(first, last)])

    def telling(self, first: int, rows: I64Array) -> list[I64Array]:
        """Words of some rows that are equal where all columns from the first one on are."""
        layout = self.layout
        line = layout.lines[first] if first < len(layout.lines) else layout.height
        words = self.words[line:].take(rows, 1)
        for (kind, _), at in zip(layout.kinds[first:], layout.lines[first:], strict=True):
            if kind is Type.FLOAT:
                floats = words[at - line].view(np.float64)
                np.add(floats, 0.0, out=floats)  # minus zero is zero
        return list(words)

    def take(self, rows: I64Array) -> Block:
        """The rows with these numbers."""
        return Block(self.words.take(rows, 1), self.layout)

    def first(self, columns: int) -> Block:
        """The first columns alone, sharing memory."""
        if columns == len(self.layout.kinds):
            return self
        layout = layout_of(self.layout.kinds[:columns])
        return Block(self.words[: layout.height], layout)

    def followed_by(self, other: Block) -> Block:
        """The rows of both, one after the other. Raises: Unsuited if their types differ."""
        mine, theirs = self, other
        if self.layout is not other.layout:
            common = _common(self.layout, other.layout)
            mine, theirs = mine._laid_out(common), theirs._laid_out(common)
        return Block(np.concatenate((mine.words, theirs.words), 1), mine.layout)

    def _laid_out(self, layout: Layout) -> Block:
        if self.layout is layout:
            return self
        return _filled(self.columns(0, len(layout.kinds)), layout, len(self))


def _nulls_of(column: Column) -> Nulls:
    if column.nulls is None:
        return Nulls.NONE
    return Nulls.ALL if surely_absent(column) else Nulls.SOME


def _filled(columns: Sequence[Column], layout: Layout, rows: int) -> Block:
    words = np.empty((layout.height, rows), np.int64)
    for column, (kind, nulls), line in zip(columns, layout.kinds, layout.lines, strict=True):
        if nulls is not Nulls.ALL:
            words[line] = column.values.view(np.int64) if kind is Type.FLOAT else column.values
        if nulls is Nulls.SOME:
            words[line + 1] = False if column.nulls is None else column.nulls
    return Block(words, layout)


def _common(left: Layout, right: Layout) -> Layout:
    """A layout for the columns of both. Raises: Unsuited if their types differ."""
    kinds = []
    for (kind, mine), (other, theirs) in zip(left.kinds, right.kinds, strict=True):
        if kind is not other:
            raise Unsuited
        kinds.append((kind, mine if mine is theirs else Nulls.SOME))
    return layout_of(tuple(kinds))


__all__ = ["Block"]
