"""A process that always loses the race for the first part of what it writes."""

from __future__ import annotations

import pyarrow as pa

from tidemill.arrangement.updates import between
from tidemill.shard import AppendOutcome, Collections
from tidemill.time import Frontier, frontier, sole_time


class Overtaken(Collections):
    """Another replica writes the first half of each interval just before this process writes it.

    Its rows are right: a part of the same updates. `overtaken` counts the occasions.
    """

    overtaken = 0

    async def compare_and_append(
        self,
        collection: str,
        expected: Frontier,
        new: Frontier,
        updates: pa.Table | None,
        *,
        writer: str,
        token: str | None = None,
    ) -> AppendOutcome:
        if updates is not None and not new.empty:
            lower, upper = sole_time(expected), sole_time(new)
            middle = (lower + upper) // 2
            if lower < middle:
                self.overtaken += 1
                await super().compare_and_append(
                    collection,
                    expected,
                    frontier(middle),
                    between(updates, lower, middle),
                    writer="replica",
                )
        return await super().compare_and_append(
            collection, expected, new, updates, writer=writer, token=token
        )
