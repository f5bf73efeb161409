"""The rows of an input that are alive, on columns: what is present in a window, from the changes in it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tidemill.arrangement.kernels import I64Array
from tidemill.arrangement.relational import Groups, accumulate_groups, buckets_of
from tidemill.datalog.columnar.columns import END_WORD, Column, Columns, Texts, words_of
from tidemill.datalog.columnar.grouping import stacked
from tidemill.datalog.evaluation.forms import Type
from tidemill.time import Corrupt


class LivingColumns:
    """Rows that are alive, with how many copies of each; not for several threads.

    `rows` are present from their start on, without an end; no two of them are equal.
    """

    def __init__(self, rows: Columns, copies: I64Array) -> None:
        self.rows = rows
        self.copies = copies

    @classmethod
    def none(cls, like: Columns) -> LivingColumns:
        """No rows, of the types of others."""
        return cls(like.part(0, 0), np.empty(0, np.int64))

    def __len__(self) -> int:
        return len(self.copies)

    def advance(self, changes: Columns, diffs: I64Array) -> Columns:
        """The stretches in which rows are present up to the last change; what is alive then stays.

        The starts of `changes` are their times, none before a start so far; of one time they are added up.
        Raises: Corrupt if a row is taken away more often than it was put in. Cost: O(alive + changes).
        """
        if not len(changes):
            return self.rows
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
        self.rows = present(both, groups.firsts[found.alive], found.since)
        self.copies = found.copies
        stretches = present(both, groups.firsts[found.groups], found.start)
        return replace(stretches, stop=found.stop)

    def renumber(self, texts: Texts) -> None:
        """Take other numbers for texts."""
        self.rows = self.rows.renumbered(texts)


def row_words(rows: Columns) -> list[I64Array]:
    """Words that are equal for equal rows."""
    return words_of((*rows.keys, Column(Type.INT, rows.expires)))


def present(rows: Columns, chosen: I64Array, since: I64Array) -> Columns:
    """Some rows, present from given instants on."""
    taken = rows.take(chosen)
    return replace(taken, start=since, stop=np.full(len(since), END_WORD, np.int64))


__all__ = ["LivingColumns"]
