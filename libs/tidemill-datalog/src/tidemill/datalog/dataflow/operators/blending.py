"""Alternative derivations of facts that carry lattices: the end is the last one, values merge."""

from __future__ import annotations

import numpy as np

from tidemill.arrangement.interval_updates import Arrangement, Change, Merged, net_moves, replaced
from tidemill.datalog.columns.texts import Texts
from tidemill.datalog.dataflow.operators.errors import Errors
from tidemill.datalog.dataflow.operators.reducing import Failing
from tidemill.datalog.dataflow.operators.regrouping import Regrouped
from tidemill.datalog.dataflow.schema import Schema
from tidemill.datalog.values import Failed

NO_RULE = -1
"""The number in the place of a rule where the facts of several do not merge."""


class Blended:
    """The facts of a predicate whose derivations carry parafacts.

    At each instant a fact has the latest end and the merge of the parafacts of its derivations. A
    fact of which the merge fails is an error instead.
    """

    def __init__(self, schema: Schema, errors: Errors, texts: Texts) -> None:
        self._schema = schema
        self._derived = Regrouped(schema.columns, schema.expiry)
        self._merged = Merged(schema.columns, schema.key, schema.expiry)
        self._failing = Failing(schema, errors, NO_RULE, texts)
        self.facts = self._merged.facts

    @property
    def spare(self) -> Arrangement:
        """The derivations, of which the facts are made."""
        return self._derived.kept.facts

    @property
    def nbytes(self) -> int:
        """The bytes of all derivations and facts."""
        return self._merged.nbytes + self._derived.kept.nbytes

    def take(self, change: Change) -> Change:
        """Take derivations in; what that changes of the facts. See `Merged.take`."""
        if not len(change):
            return change
        touched = self._derived.take(change)
        self._failing.forget(touched.groups, touched.since)
        schema, values = self._schema, self._schema.values
        rows: list[list[int]] = []
        for alive, start, end in touched.stretches():
            row = [*alive[0][:-3], start, end, 1]
            row[schema.expiry] = max(each[schema.expiry] for each in alive)
            try:
                row[schema.carried] = values.merged(each[schema.carried] for each in alive)
            except Failed as failed:
                self._failing.note(row, failed.reason)
                continue
            last = rows[-1] if rows else None
            if last is not None and last[-2] == start and last[:-3] == row[:-3]:
                last[-2] = end
            else:
                rows.append(row)
        found = np.array(rows, np.int64).reshape(-1, schema.columns + 3)
        gone = replaced(touched.groups, touched.since, self.facts, 0, schema.expiry)
        return net_moves(self._merged.take(net_moves(np.concatenate([found, gone]))))

    def numbers(self) -> set[int]:
        """The numbers of values that derivations have."""
        return self._derived.numbers(self._schema.numbered)

    def cut(self, first: int) -> None:
        """Forget what holds from an instant on."""
        self._derived.kept.cut(first)
        self._merged.cut(first)
        self._failing.cut(first)

    def compact(self, since: int) -> None:
        """Forget what has ended by `since`."""
        self._derived.kept.compact(since)
        self._merged.compact(since)
