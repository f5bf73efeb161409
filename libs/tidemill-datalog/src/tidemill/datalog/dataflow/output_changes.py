"""Output changes: the rows of a collection that come and go in a step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

import numpy as np

from tidemill.arrangement.kernels import I64Array
from tidemill.arrangement.looks import THINGS_A_LOOK, look, with_looks
from tidemill.datalog.columns.texts import Texts
from tidemill.datalog.dataflow.carried import key_of
from tidemill.datalog.dataflow.schema import Schema, instant_of, record_of
from tidemill.datalog.lattices import Tally, observe_parafacts
from tidemill.datalog.presence import Instant
from tidemill.datalog.records import Record


@dataclass(frozen=True, slots=True)
class OutputChanges:
    """Output changes of one collection in a step: rows (columns, instant, diff), by instant."""

    schema: Schema
    moves: I64Array
    texts: Texts

    def __len__(self) -> int:
        return len(self.moves)

    def contributions(self) -> Iterable[tuple[Instant, Record, int]]:
        """The changes one by one, of facts whose tallies have all their contributions."""
        schema = self.schema
        for move in self.moves.tolist():
            record = record_of(schema, move, self.texts)
            if schema.carrying:
                shown = self._parafacts(move[schema.carried], whole=True)
                record = replace(record, parafacts=shown)
            yield instant_of(move[-2]), record, move[-1]

    def shown(self, *, whole: bool) -> tuple[I64Array, list[tuple[tuple[str, Any], ...]]]:
        """The different parafacts that are shown, and the place there of those of each change.

        Facts of a `whole` collection show all contributions to their tallies. Cost: O(changes),
        and work in Python for each different number of parafacts.
        """
        numbers, places = np.unique(self.moves[:, self.schema.carried], return_inverse=True)
        known: dict[Any, int] = {}
        different, at = list[tuple[tuple[str, Any], ...]](), list[int]()
        for number in with_looks(numbers.tolist()):
            parafacts = self._parafacts(number, whole=whole)
            at.append(known.setdefault(key_of(parafacts), len(different)))
            if at[-1] == len(different):
                different.append(parafacts)
        return np.array(at, np.int64)[places], different

    def _parafacts(self, number: int, *, whole: bool) -> tuple[tuple[str, Any], ...]:
        """The parafacts of a number as they show, by name."""
        values = self.schema.values
        inner = values.value(number)
        shown = dict(observe_parafacts(inner, values.lattices))
        if whole:
            shown.update((name, each) for name, each in inner or () if isinstance(each, Tally))
        return tuple(sorted(shown.items(), key=itemgetter(0)))

    def records(self) -> Iterable[tuple[Instant, Record, int]]:
        """The changes one by one: instant, record, 1 or -1.

        Opposite changes of records that show the same are none.
        """
        if not self.schema.carrying:
            for move in self._rows():
                yield instant_of(move[-2]), record_of(self.schema, move, self.texts), move[-1]
            return
        sums = dict[tuple[object, ...], int]()
        moves = list(self._rows())
        records = [record_of(self.schema, move, self.texts) for move in with_looks(moves)]
        keys = [self._shown(*each) for each in zip(moves, records, strict=True)]
        for key, move in zip(keys, moves, strict=True):
            sums[key] = sums.get(key, 0) + move[-1]
        for key, move, record in zip(keys, moves, records, strict=True):
            if sums[key]:
                yield instant_of(move[-2]), record, move[-1]

    def _rows(self) -> Iterator[list[int]]:
        """The changes as lists of words: to make all of them at once is one long call."""
        for start in range(0, len(self.moves), THINGS_A_LOOK):
            look()
            yield from self.moves[start : start + THINGS_A_LOOK].tolist()

    def _shown(self, move: list[int], record: Record) -> tuple[object, ...]:
        """A change as it shows: its words but for the number of its parafacts, and these."""
        words = (*move[: self.schema.carried], *move[self.schema.nulls : -1])
        return (words, record.parafacts)
