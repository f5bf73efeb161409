"""Building an arrangement: the updates of a collection in another one, under another key."""

from __future__ import annotations

import msgspec

from tidemill.errors import Unavailable, UsageError
from tidemill.shard import Collections
from tidemill.shard.encoding import pack_part, unpack_part
from tidemill.spark.launcher import Job, JobFailed, JobKind, SparkLauncher
from tidemill.time import frontier, sole_time

JOB = "tidemill_compute.arrange_job"


class SparkArrange:
    """Brings an arrangement up to what its collection says, by one Spark job and a
    compare-and-append.
    """

    def __init__(self, launcher: SparkLauncher, collections: Collections) -> None:
        self._launcher = launcher
        self._collections = collections

    async def build(self, collection: str, arrangement: str) -> int:
        """Append to `arrangement` the updates of `collection` from its upper on; returns a number.

        The number is that of the appended updates. At each instant from the arrangement's beginning
        on both then hold the same rows. An arrangement without any updates begins with the contents
        of the collection at its upper. A writer that lost a race changes nothing. Raises:
        UsageError if the two have different columns, the collection is closed, or its history no
        longer goes back so far. Unavailable if the job failed.
        """
        from tidemill_compute.arrange_job import (
            ArrangeResult,
            ArrangeSpec,
        )  # few processes launch jobs

        source = await self._collections.state(collection)
        target = await self._collections.newest(arrangement)
        lower = _instant(target.upper.elements, arrangement)
        upper = _instant(source.upper.elements, collection)
        since = _instant(source.since.elements, collection)
        if source.description.schema != target.description.schema:
            raise UsageError(
                f"{arrangement} cannot hold what {collection} holds: its columns are others",
                reason="Schema",
            )
        fresh = not target.batches
        if lower < since:
            raise UsageError(
                f"{collection} is known from {since} on, and {arrangement} ends at {lower}",
                reason="BeforeSince",
            )
        if lower >= upper:
            return 0
        parts = [part for part in source.parts() if fresh or part.meets(lower, upper)]
        spec = ArrangeSpec(
            arrangement, source.description.schema.serialize().to_pybytes(),
            list(source.description.arrived), list(target.description.key),
            [pack_part(part) for part in parts], fresh, lower, upper,
        )  # fmt: skip
        job = Job(JobKind.ARRANGEMENT, arrangement, JOB, msgspec.msgpack.encode(spec))
        outcome = await self._launcher.launch(job)
        if isinstance(outcome, JobFailed):
            raise Unavailable(f"the arrangement {arrangement} could not be built: {outcome}")
        result = msgspec.msgpack.decode(outcome.result, type=ArrangeResult)
        written = [unpack_part(part) for part in result.parts]
        await self._collections.append_parts(
            arrangement, frontier(lower), frontier(upper), written, writer=f"arrange:{collection}"
        )
        return sum(part.rows for part in written)


def _instant(elements: tuple[int, ...], collection: str) -> int:
    if not elements:
        raise UsageError(f"{collection} is closed", reason="Closed")
    return sole_time(frontier(*elements))
