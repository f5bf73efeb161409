"""The history of a view on Spark: one window of a fresh view, whose parts are appended here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from tidemill.errors import Exhausted, Unavailable
from tidemill.shard import Collections
from tidemill.shard.encoding import pack_part, unpack_part
from tidemill.spark.launcher import Job, JobFailed, JobKind, SparkLauncher
from tidemill.time import frontier
from tidemill_compute.views.bulk import HISTORY_BYTES, HISTORY_BYTES_MAX, History
from tidemill_compute.views.history_spec import pack_history
from tidemill_compute.views.windows.spec import Window, WindowResult, pack_window

JOB = "tidemill_compute.views.windows.window_job"


class SparkHydrate:
    """Guarantees of BulkHydrate, by one Spark job and a compare-and-append for each collection."""

    def __init__(
        self,
        launcher: SparkLauncher,
        collections: Collections,
        now_ms: Callable[[], int],
        unique: Callable[[], str],
        bytes_max: int = HISTORY_BYTES_MAX,
    ) -> None:
        """A range may hold `bytes_max` in memory; `unique` tells the objects of two jobs apart."""
        self._launcher = launcher
        self._collections = collections
        self._now_ms = now_ms
        self._unique = unique
        self._bytes_max = bytes_max

    async def hydrate(self, history: History) -> None:
        """Guarantees of BulkHydrate.

        Raises: Unavailable with the end of the job's log if it failed; Exhausted.
        """
        target, owner = history.target, self._unique()
        window = await asyncio.to_thread(
            history_window, history, owner, self._now_ms(), self._bytes_max
        )
        outcome = await self._launcher.launch(
            Job(JobKind.HYDRATION, target.name, JOB, pack_window(window))
        )
        if isinstance(outcome, JobFailed):
            raise Unavailable(f"the history of {target.name} could not be evaluated: {outcome}")
        result = msgspec.msgpack.decode(outcome.result, type=WindowResult)
        if result.failure == "exhausted":
            raise Exhausted(result.message, reason="memory", setting=HISTORY_BYTES)
        if result.failure or any(rows > target.limits.rows for rows in result.rows.values()):
            said = result.message or "a predicate has too many rows"
            raise Unavailable(f"the history of {target.name} could not be evaluated: {said}")
        # IMPORTANT: the state first: a restart takes it as of what the least output has.
        outputs = [collection for collection, _ in target.outputs.values()]
        for collection in (target.state, *outputs, target.errors):
            parts = [unpack_part(part) for part in result.parts.get(collection, ())]
            await self._collections.append_parts(
                collection, frontier(history.lower), frontier(history.upper), parts,
                writer=target.name,
            )  # fmt: skip


def history_window(
    history: History, owner: str, begun_ms: int, bytes_max: int = HISTORY_BYTES_MAX, ranges: int = 1
) -> Window:
    """A history as the window of a fresh view, in `ranges` at least where it can be divided.

    Cost: as `placement_of`, and O(parts).
    """
    from tidemill.datalog.placement import ranges_for  # loads loops
    from tidemill_compute.views.range_history import RangeHistory

    divided = RangeHistory.of(history, ranges_for(history.rows, ranges))
    parts = {
        name: [pack_part(part) for part in parts] for name, (_, parts) in history.inputs.items()
    }
    return Window(
        owner, pack_history(history, bytes_max), history.input_rows, divided.ranges,
        history.lower, history.upper, True, begun_ms, parts, {}, fresh=True, ranges_max=divided.ranges_max(),
    )  # fmt: skip
