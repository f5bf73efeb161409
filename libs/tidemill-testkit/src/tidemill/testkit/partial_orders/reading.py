"""The contents of a trace of rows at a time."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TypeVar

from tidemill.arrangement.trace.spine import Spine
from tidemill.errors import BeforeSince, NotYet
from tidemill.testkit.partial_orders.row_batches import Record, RowBatch
from tidemill.testkit.partial_orders.update_sets import Update, accumulate_updates

D = TypeVar("D", bound=Record)
T = TypeVar("T", bound=Hashable)


def updates_of(batches: Iterable[RowBatch[D, T]]) -> list[Update[D, T]]:
    """The rows of all `batches`, not consolidated across them."""
    return [update for batch in batches for update in batch]


def read_at(spine: Spine[T, RowBatch[D, T]], at: T) -> dict[D, int]:
    """The multiplicity of each record at `at`, exactly, zeros left out.

    Raises: BeforeSince if `at` is not beyond the logical frontier; NotYet if it is beyond upper.
    Cost: O(n).
    """
    if not spine.logical.less_equal(at):
        raise BeforeSince(
            f"{at} is not beyond the logical frontier {spine.logical}",
            requested=at,
            since=spine.logical,
        )
    if spine.upper.less_equal(at):
        raise NotYet(f"{at} is beyond the upper {spine.upper}", requested=at, upper=spine.upper)
    return accumulate_updates(updates_of(spine.batches()), spine.lattice, at)
