"""Jobs as child processes on this machine: the twin of pods, with the same answers."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from tidemill.errors import Unavailable
from tidemill.shard.stores import BlobPlace
from tidemill.spark.launcher import FailureKind, Job, JobDone, JobFailed, JobListener, JobSaid
from tidemill.spark.local_settings import LocalSettings

MODULE = "tidemill.spark.local_job"


STOP_GRACE_S = 5.0
"""Seconds for a process to end by itself."""


class LocalLauncher:
    """Runs a job as a child process, with its log in `directory`; nothing is tried again."""

    remote = False

    def __init__(
        self, directory: Path, blob: BlobPlace, session: LocalSettings, *,
        told: JobListener = lambda said: None,
        lacking: Callable[[], str] = lambda: "",
    ) -> None:  # fmt: skip
        """`lacking` gives a sentence if this machine cannot run Spark; it refuses each job."""
        self._lacking = lacking
        self._directory = directory
        self.blob = blob
        self._session = session
        self._told = told

    async def launch(self, job: Job) -> JobDone | JobFailed:
        """Guarantees of SparkLauncher. Raises Unavailable if the process cannot be started."""
        lacking = self._lacking()
        if lacking:
            self._told(JobSaid(job, "failed"))
            return JobFailed(FailureKind.REFUSED, lacking, "none")
        self._directory.mkdir(parents=True, exist_ok=True)
        log, result = (self._directory / f"{job.name}.{kind}" for kind in ("log", "result"))
        result.unlink(missing_ok=True)
        said = msgspec.msgpack.encode(
            {
                "module": job.module, "spec": job.spec, "blob": self.blob,
                "session": self._session, "result": str(result.resolve()),
            }
        )  # fmt: skip
        self._told(JobSaid(job, "running"))
        status = 1
        try:
            status = await self._run(job, said, log)
        finally:
            self._told(JobSaid(job, "succeeded" if status == 0 else "failed"))
        if status != 0:
            return JobFailed(FailureKind.DRIVER, _tail(log), str(log), status)
        done = JobDone(result.read_bytes())
        result.unlink()
        return done

    async def tend_forever(self) -> None:
        """Nothing is left but one log for each job."""

    async def close(self) -> None:
        """Nothing is held."""

    async def _run(self, job: Job, said: bytes, log: Path) -> int:
        with log.open("wb") as sink:
            try:
                process = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", MODULE,
                    stdin=asyncio.subprocess.PIPE, stdout=sink, stderr=sink, start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                raise Unavailable(f"the job {job.name} could not be started: {error}") from error
            try:
                await process.communicate(said)
            finally:
                await self._stop(process)
        return process.returncode or 0

    async def _stop(self, process: asyncio.subprocess.Process) -> None:
        if process.returncode is not None:
            return
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), STOP_GRACE_S)
        except TimeoutError:
            process.kill()
            await process.wait()


def _tail(log: Path, lines: int = 3) -> str:
    """The last lines that say something."""
    kept = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return " | ".join(kept[-lines:])
