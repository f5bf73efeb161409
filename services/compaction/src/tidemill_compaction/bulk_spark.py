"""Big merges on Spark: starts the job, and puts its result in place."""

from __future__ import annotations

import msgspec

from tidemill.errors import Unavailable
from tidemill.shard import Collections
from tidemill.shard.compaction import Merge
from tidemill.shard.encoding import unpack_part
from tidemill.spark.launcher import Job, JobFailed, JobKind, SparkLauncher

JOB = "tidemill_compaction.merge_job"


class SparkMerge:
    """Guarantees of BulkMerge, by one Spark job and one compare-and-set."""

    def __init__(self, launcher: SparkLauncher, collections: Collections) -> None:
        self._launcher = launcher
        self._collections = collections

    async def merge(self, merge: Merge) -> bool:
        """Guarantees of BulkMerge.

        Raises: Unavailable with the end of the job's log if it failed.
        """
        from tidemill_compaction.merge_job import MergeResult, spec_of  # few processes launch jobs

        spec = msgspec.msgpack.encode(spec_of(merge.work))
        job = Job(JobKind.COMPACTION, merge.collection, JOB, spec)
        outcome = await self._launcher.launch(job)
        if isinstance(outcome, JobFailed):
            raise Unavailable(f"the merge of {merge.collection} failed: {outcome}")
        result = msgspec.msgpack.decode(outcome.result, type=MergeResult)
        if result.gone:
            return False
        merge.take(unpack_part(part) for part in result.parts)
        return await self._collections.commit_merge(merge)
