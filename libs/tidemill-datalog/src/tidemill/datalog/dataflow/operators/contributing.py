"""The columns from which the contributions of a rule to its groups are copied as they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tidemill.arrangement.interval_updates import Change, contribute
from tidemill.arrangement.kernels import I64Array
from tidemill.datalog.columns.spelling import MOMENTS
from tidemill.datalog.dataflow.plan import DeltaPlan, Reduce, RulePlan
from tidemill.datalog.dataflow.schema import TIME, Schema
from tidemill.datalog.logical.forms import Expression, Type, Variable

_COPIED = MOMENTS | {Type.INT, Type.BOOL}
"""Types of variables whose words are values of a group as they are."""


@dataclass(frozen=True, slots=True, eq=False)
class Sources:
    """Columns of rows with the groups and the values of contributions, their times and expiries.

    Contributions have no time of their own where its column is -1.
    """

    groups: I64Array
    time: int
    expiry: int
    values: I64Array

    def contributions(self, rows: Change, width: int) -> Change:
        """The contributions of rows, of some width. Cost: O(rows)."""
        return contribute(rows, self.groups, self.time, self.expiry, self.values, width)


def sources_of(
    reduce: Reduce, plan: RulePlan, schema: Schema, first: int, terms: Sequence[Expression]
) -> Sources | None:
    """The sources in a match, None where one of its values is computed.

    The columns of the group begin with the column `first` of the head.
    """
    columns = {place: column for column, place in plan.head.copies.T.tolist()}
    columns[TIME] = plan.columns.time
    groups = [columns.get(place) for place in range(first, schema.expiry)]
    values: list[int | None] = []
    for term, kind in zip(terms, reduce.kinds, strict=True):
        known = plan.columns.variables.get(term.name) if isinstance(term, Variable) else None
        copied = known is not None and known[1] is kind and kind in _COPIED
        values.append(known[0] if known is not None and copied else None)
    if reduce.carried or None in groups or None in values:
        return None
    time = plan.columns.time if first else -1
    return Sources(
        np.array(groups, np.int64), time, plan.columns.expiry, np.array(values, np.int64)
    )


def straight_sources(sources: Sources | None, plan: RulePlan, delta: DeltaPlan) -> Sources | None:
    """The sources in a row of the change of a delta plan, of which each row is a match as it is.

    None where matches have to be made: a row is judged, completed or given a time or an expiry.
    """
    head, begin = plan.head, delta.begin
    judged = begin.keys.size or begin.checks.size or len(begin.guards) or begin.known
    made = head.time or head.expires or head.computed or head.passes is not None or head.outlives
    told = head.timed and head.expiring and begin.timed and begin.expiring >= 0
    if sources is None or judged or made or not told or delta.steps or delta.sign < 0:
        return None
    found = {plan.columns.time: TIME, plan.columns.expiry: begin.expiring}
    found |= dict(begin.copies.T.tolist())
    if not found.keys() >= {*sources.groups.tolist(), *sources.values.tolist()}:
        return None
    groups, values = (
        np.array([found[column] for column in columns.tolist()], np.int64)
        for columns in (sources.groups, sources.values)
    )
    return Sources(groups, TIME if sources.time >= 0 else -1, begin.expiring, values)
