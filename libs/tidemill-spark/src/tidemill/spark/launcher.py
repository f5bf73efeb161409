"""The port to launchers of bulk jobs, off the hot path: a specification in, bytes out."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from typing import Protocol

NAME_CHARS_MAX = 40
"""So long is the name of a job at most: the names of its pods are longer, and end at 63."""


class JobKind(StrEnum):
    """Kinds of bulk jobs."""

    BACKFILL = "backfill"
    ARRANGEMENT = "arrangement"
    COMPACTION = "compaction"
    HYDRATION = "hydration"
    SESSION = "session"
    """Stays, and evaluates windows until nobody asks it any more."""


class FailureKind(StrEnum):
    """Why a job ended badly; what is tried again, and how often, depends on it."""

    IMAGE = "ImageUnavailable"
    """The image cannot be had."""

    SCHEDULING = "Unschedulable"
    """There is no room for the driver."""

    START = "NotStarted"
    """The driver has a node, and does not begin."""

    EVICTED = "Evicted"
    """The node put the driver out."""

    VANISHED = "Vanished"
    """The driver is gone without a word."""

    MEMORY = "OutOfMemory"
    """Driver or executors needed more than they may."""

    DEADLINE = "DeadlineExceeded"
    """It took longer than a job may."""

    DRIVER = "DriverFailed"
    """The job itself ended with an error."""

    REFUSED = "Refused"
    """The specification of the job, or its pod, is refused: the same again fails the same way."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job for `of`, such as a source: `module` has `run(spec, workplace)`, which gives the
    result.

    Two jobs of one kind and `of` are the same work: a launcher runs one of them at a time.
    """

    kind: JobKind
    of: str
    module: str
    spec: bytes

    @property
    def name(self) -> str:
        """A label of Kubernetes and a file name at once; different for whatever is different."""
        plain = re.sub(r"[^a-z0-9]+", "-", f"{self.kind}-{self.of}".lower()).strip("-")
        if plain == f"{self.kind}-{self.of}" and len(plain) <= NAME_CHARS_MAX:
            return plain
        told = blake2b(f"{self.kind}-{self.of}".encode(), digest_size=4).hexdigest()
        return f"{plain[: NAME_CHARS_MAX - 9].strip('-')}-{told}"

    @property
    def digest(self) -> str:
        """Which of all possible specifications it is."""
        return blake2b(self.module.encode() + b"\0" + self.spec, digest_size=5).hexdigest()

    @property
    def spec_digest(self) -> str:
        """Digest by which a driver checks the specification before it reads it."""
        return digest_of(self.spec)


def digest_of(spec: bytes) -> str:
    """The blake2b-256 of a specification, in hexadecimal."""
    return blake2b(spec, digest_size=32).hexdigest()


@dataclass(frozen=True, slots=True)
class JobDone:
    """A job that ended well, with what its module gave."""

    result: bytes


@dataclass(frozen=True, slots=True)
class JobFailed:
    """A job that ended badly, after all attempts; `log` says where more is to be read."""

    kind: FailureKind
    reason: str
    log: str
    exit_status: int | None = None
    attempts: int = 1

    def __str__(self) -> str:
        ended = "" if self.exit_status is None else f" with {self.exit_status}"
        tried = "" if self.attempts == 1 else f" after {self.attempts} attempts"
        return f"{self.kind}{ended}{tried}: {self.reason} (log: {self.log})"


@dataclass(frozen=True, slots=True)
class JobSaid:
    """A job, or one attempt of it, came to another state: for counters and people."""

    job: Job
    state: str
    """pending, running, succeeded, failed, or retried."""

    failure: FailureKind | None = None


JobListener = Callable[[JobSaid], None]


class SparkLauncher(Protocol):
    """Runs a job somewhere and waits for it."""

    @property
    def remote(self) -> bool:
        """Whether jobs run elsewhere: they reach brokers and buckets, and no files of this
        machine.
        """
        ...

    async def launch(self, job: Job) -> JobDone | JobFailed:
        """Run the job until it ends, again where that may help.

        A job only writes objects that no version names yet, and its caller commits them by
        compare-and-append. So it may be begun any number of times. Cancelling ends it.
        """
        ...

    async def tend_forever(self) -> None:
        """Clear away what jobs have left once nobody wants it any more, until cancelled."""
        ...

    async def close(self) -> None:
        """Release what the launcher holds; again is fine."""
        ...
