"""Starting Spark jobs off the hot path: a job is a process of its own that is told what to do."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tidemill.time import Unavailable


@dataclass(frozen=True, slots=True)
class JobDone:
    """A job that ended well; `result` is what it printed on its last line."""

    result: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class JobFailed:
    """A job that ended badly; `reason` is the end of its log, `log` where the whole is."""

    exit_status: int
    reason: str
    log: Path


class SparkLauncher(Protocol):
    """Runs a job somewhere and waits for it."""

    async def launch(self, name: str, module: str, spec: bytes) -> JobDone | JobFailed:
        """Run `python -m module` with `spec` on its standard input until it ends.

        A job is idempotent by compare-and-append, so a launcher may be asked again after any
        failure. Cancelling ends the job.
        """


class LocalLauncher:
    """Runs a job as a child process on this machine, with its log in `directory`."""

    def __init__(self, directory: Path, *, stop_grace_s: float = 5.0) -> None:
        self._directory = directory
        self._stop_grace_s = stop_grace_s

    async def launch(self, name: str, module: str, spec: bytes) -> JobDone | JobFailed:
        """Guarantees of SparkLauncher. Raises Unavailable if the process cannot be started."""
        self._directory.mkdir(parents=True, exist_ok=True)
        log = self._directory / f"{name}.log"
        with log.open("wb") as sink:
            try:
                process = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", module,
                    stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=sink,
                    start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                raise Unavailable(f"the job {name} could not be started: {error}") from error
            try:
                printed, _ = await process.communicate(spec)
            finally:
                await self._stop(process)
        status = process.returncode or 0
        if status != 0:
            return JobFailed(status, _tail(log), log)
        return JobDone(json.loads(printed.decode().strip().splitlines()[-1]))

    async def _stop(self, process: asyncio.subprocess.Process) -> None:
        if process.returncode is not None:
            return
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), self._stop_grace_s)
        except TimeoutError:
            process.kill()
            await process.wait()


def _tail(log: Path, lines: int = 3) -> str:
    """The last lines that say something."""
    kept = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return " | ".join(kept[-lines:])
