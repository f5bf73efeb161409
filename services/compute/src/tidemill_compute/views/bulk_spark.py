"""The history of a view on Spark: starts the job, and appends what it wrote."""

from __future__ import annotations

import msgspec

from tidemill.errors import Exhausted, Unavailable
from tidemill.shard import Collections
from tidemill.shard.encoding import unpack_part
from tidemill.spark.launcher import Job, JobFailed, JobKind, SparkLauncher
from tidemill.time import frontier
from tidemill_compute.views.bulk import HISTORY_BYTES, HISTORY_BYTES_MAX, History
from tidemill_compute.views.history_spec import pack_history

JOB = "tidemill_compute.views.hydrate_job"


class SparkHydrate:
    """Guarantees of BulkHydrate, by one Spark job and a compare-and-append for each collection."""

    def __init__(
        self,
        launcher: SparkLauncher,
        collections: Collections,
        bytes_max: int = HISTORY_BYTES_MAX,
    ) -> None:
        """A job may hold `bytes_max` in memory."""
        self._launcher = launcher
        self._collections = collections
        self._bytes_max = bytes_max

    async def hydrate(self, history: History) -> None:
        """Guarantees of BulkHydrate.

        Raises: Unavailable with the end of the job's log if it failed; Exhausted.
        """
        from tidemill_compute.views.hydrate_job import HydrationResult  # few processes launch jobs

        target = history.target
        job = Job(JobKind.HYDRATION, target.name, JOB, pack_history(history, self._bytes_max))
        outcome = await self._launcher.launch(job)
        if isinstance(outcome, JobFailed):
            raise Unavailable(f"the history of {target.name} could not be evaluated: {outcome}")
        result = msgspec.msgpack.decode(outcome.result, type=HydrationResult)
        if result.exhausted:
            raise Exhausted(result.exhausted, reason="memory", setting=HISTORY_BYTES)
        # IMPORTANT: the state first: a restart takes it as of what the least output has.
        outputs = [collection for collection, _ in target.outputs.values()]
        for collection in (target.state, *outputs, target.errors):
            parts = [unpack_part(part) for part in result.parts.get(collection, ())]
            await self._collections.append_parts(
                collection, frontier(history.lower), frontier(history.upper), parts,
                writer=target.name,
            )  # fmt: skip
