"""The executors of a driver that stays: as many as its windows have tasks for."""

from __future__ import annotations

from collections import deque
from threading import Lock
from typing import TYPE_CHECKING, Any

from tidemill.runtime.clock import Clock

if TYPE_CHECKING:  # who launches jobs has no Spark
    from pyspark.sql import SparkSession

KEEP_S = 60.0
"""Seconds for which executors are kept that the widest window could use."""
_DYNAMIC = "spark.dynamicAllocation"


class Crew:
    """The number of executors that the windows of the last minute could use; for any thread.

    Cost: O(windows of that minute).
    """

    def __init__(self, clock: Clock, cores_each: int, keep_s: float = KEEP_S) -> None:
        self._clock = clock
        self._cores_each = cores_each
        self._keep_s = keep_s
        self._asked: deque[tuple[float, int]] = deque()
        self._lock = Lock()

    def take(self, tasks: int) -> None:
        """Note a window with so many tasks in each stage."""
        with self._lock:
            self._asked.append((self._clock.monotonic_s(), tasks))

    @property
    def wanted(self) -> int:
        """Executors that are of use; one at least, which the next window finds ready."""
        since_s = self._clock.monotonic_s() - self._keep_s
        with self._lock:
            while self._asked and self._asked[0][0] < since_s:
                self._asked.popleft()
            most = max((tasks for _, tasks in self._asked), default=1)
        return max(1, -(-most // self._cores_each))


def cores_of(spark: SparkSession) -> int:
    """The cores that a session may have; those that are not there yet come with tasks."""
    conf = spark.sparkContext.getConf()
    if conf.get(f"{_DYNAMIC}.enabled", "false") != "true":
        return int(spark.sparkContext.defaultParallelism)
    return int(conf.get(f"{_DYNAMIC}.maxExecutors") or 1) * cores_each(spark)


def cores_each(spark: SparkSession) -> int:
    """The tasks that one executor runs at a time."""
    return int(spark.sparkContext.getConf().get("spark.executor.cores") or 1)


def keep(spark: SparkSession, wanted: int) -> int:
    """The number of executors, of which idle ones beyond those that are wanted go now.

    Spark lets go of one that had no task for a while. A few tasks now and then go to any of them,
    so that all of them stay. On one machine the driver is the only executor.
    """
    context: Any = spark.sparkContext
    if context.getConf().get(f"{_DYNAMIC}.enabled", "false") != "true":
        return 1
    backend, jvm = context._jsc.sc().schedulerBackend(), context._jvm
    known = jvm.scala.jdk.javaapi.CollectionConverters.asJava(backend.getExecutorIds())
    names = sorted(map(str, known), key=int)
    if surplus := names[wanted:]:
        # No other is to come in their place, no failure is counted, and a busy one stays.
        backend.killExecutors(jvm.PythonUtils.toSeq(surplus), False, False, False)
    return len(names)
