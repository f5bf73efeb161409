"""The rows of an input that are alive, on columns: what is present in a window, from the changes in
it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tidemill.arrangement.kernels import I64Array
from tidemill.arrangement.relational import Groups, accumulate_groups, buckets_of
from tidemill.datalog.columnar.columns import END_WORD, Columns
from tidemill.datalog.columnar.grouping import stacked
from tidemill.datalog.columns.column import Column, words_of
from tidemill.datalog.columns.texts import Texts
from tidemill.datalog.logical.forms import Type
from tidemill.errors import Corrupt


class LivingColumns:
    """Rows that are alive, with how many copies of each; never changed, so that several views may
    hold one.

    `rows` are present from their start on, without an end; no two of them are equal.
    """

    __slots__ = ("__weakref__", "copies", "rows")

    def __init__(self, rows: Columns, copies: I64Array) -> None:
        self.rows = rows
        self.copies = copies

    def __len__(self) -> int:
        return len(self.copies)

    def advanced(self, changes: Columns, diffs: I64Array) -> tuple[LivingColumns, Columns]:
        """What is alive after the last change, and the stretches in which rows are present up to
        there.

        The starts of `changes` are their times, none before a start so far; of one time they are
        added up. The stretches of rows that stay share the memory of what is alive. Raises: Corrupt
        if a row is taken away more often than it was put in. Cost: O(alive + changes).
        """
        if not len(changes):
            return self, self.rows
        both = stacked([self.rows, changes])
        every = np.concatenate([self.copies, diffs])
        groups = Groups.of(row_words(both), len(both))
        found = accumulate_groups(buckets_of(groups.ids, len(groups)), both.start, every)
        if found.wrong >= 0:
            raise Corrupt(
                f"a row is taken away more often than it was put in, first at {both.start[found.wrong]}",
                row=both.part(found.wrong, found.wrong + 1).to_rows()[0],
                time=int(both.start[found.wrong]),
            )
        ended = found.stop != END_WORD
        if not ended.any():
            rows = present(both, groups.firsts[found.alive], found.since)
            return LivingColumns(rows, found.copies), rows
        order = np.argsort(ended, kind="stable")  # those that stay, as in `found.alive`, come first
        stretches = replace(
            present(both, groups.firsts[found.groups[order]], found.start[order]),
            stop=found.stop[order],
        )
        alive = len(found.alive)
        rows = stretches.part(0, alive)
        if 2 * alive < len(stretches):
            rows = rows.take(np.arange(alive))  # not to keep the memory of what has ended
        return LivingColumns(rows, found.copies), stretches

    def renumbered(self, texts: Texts) -> LivingColumns:
        """The same with other numbers for texts."""
        return LivingColumns(self.rows.renumbered(texts), self.copies)


def row_words(rows: Columns) -> list[I64Array]:
    """Words that are equal for equal rows."""
    return words_of((*rows.keys, Column(Type.INT, rows.expires)))


def present(rows: Columns, chosen: I64Array, since: I64Array) -> Columns:
    """Some rows, present from given instants on."""
    taken = rows.take(chosen)
    return replace(taken, start=since, stop=np.full(len(since), END_WORD, np.int64))


__all__ = ["LivingColumns"]
