"""The workplace of a job: a session, the objects, and a log for its progress."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

from tidemill.shard.stores import BlobPlace, StoredBlob, open_blob

if TYPE_CHECKING:  # who launches jobs has no Spark
    from pyspark.sql import SparkSession

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Workplace:
    """`blob` is where the objects of collections are, as executors see it; it may be pickled."""

    spark: SparkSession
    blob: BlobPlace
    say: Callable[[str], None]


class JobModule(Protocol):
    """Interface of a job's module."""

    def run(self, spec: bytes, here: Workplace) -> bytes:
        """Do the work of a specification and give the result. Commits nothing."""
        ...


def run_module(module: str, spec: bytes, here: Workplace) -> bytes:
    """The result of the job in `module`."""
    job = cast(JobModule, import_module(module))
    return job.run(spec, here)


def with_blob(place: BlobPlace, work: Callable[[StoredBlob], Coroutine[None, None, T]]) -> T:
    """The result of some work on objects, in a task of an executor or in a driver."""

    async def run() -> T:
        blob = open_blob(place, partial(token_hex, 16))
        try:
            return await work(blob)
        finally:
            await blob.close()

    return asyncio.run(run())


def task_number() -> int:
    """The number of the partition that this task, of an executor, is about."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None, "a task knows its place"
    number: int = context.partitionId()
    return number


def executor_folder() -> Path:
    """The folder of the files of an executor, which goes with it."""
    from pyspark import SparkFiles

    return Path(SparkFiles.getRootDirectory())


def say(line: str) -> None:
    """Into the log of the job."""
    print(line, file=sys.stderr, flush=True)
