"""Jobs in a session that is there already: for tests of what a job does, not of how it is
started.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tidemill.shard.stores import BlobPlace
from tidemill.spark.local import LocalLauncher

if TYPE_CHECKING:
    import pytest
    from pyspark.sql import SparkSession

    from tidemill.spark.launcher import Job, JobDone, JobFailed


class SessionLauncher:
    """Guarantees of SparkLauncher, in one session after the other; `launched` are the jobs so
    far.
    """

    remote = False

    def __init__(self, spark: SparkSession, blob: BlobPlace) -> None:
        self.launched: list[Job] = []
        self._spark = spark
        self._blob = blob

    async def launch(self, job: Job) -> JobDone | JobFailed:
        """Run the job's module; what it raises is the reason of the failure."""
        from tidemill.spark.launcher import FailureKind, JobDone, JobFailed
        from tidemill.spark.workplace import Workplace, run_module

        self.launched.append(job)
        here = Workplace(self._spark, self._blob, lambda line: None)
        try:
            return JobDone(await asyncio.to_thread(run_module, job.module, job.spec, here))
        except Exception as error:  # whatever a job raises ends it
            return JobFailed(FailureKind.DRIVER, str(error), "the session")

    async def tend_forever(self) -> None:
        """Nothing is left."""

    async def close(self) -> None:
        """The session is somebody else's."""


def run_in_session(patch: pytest.MonkeyPatch, spark: SparkSession) -> list[Job]:
    """Give the jobs of each LocalLauncher to a session that is there; the jobs so far.

    A process and a JVM for each job take ten seconds of processor.
    """
    launched: list[Job] = []

    async def launch(launcher: LocalLauncher, job: Job) -> JobDone | JobFailed:
        launched.append(job)
        return await SessionLauncher(spark, launcher.blob).launch(job)

    patch.setattr(LocalLauncher, "launch", launch)
    return launched
