"""Seconds and rows of the stages of a process, from decoded records to committed updates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock

STAGES = ("decode", "bind", "stage", "sort", "encode", "write", "read", "operators", "commit")
"""Stages in the order in which a record meets them first.

* `decode`: records to typed rows; `bind`: rows to their instants.
* `stage`: rows to event time.
* `sort`, `encode`, `write`: updates to sorted parts, their bytes, objects in Blob.
* `read`: parts from Blob, decoded; `operators`: changes of inputs to changes of outputs.
* `commit`: a version that names the parts.
"""


class StageTimes:
    """Adds up seconds and rows by stage, on any thread.

    Seconds are of the clock, waits included, and stages overlap. Cost: a microsecond or two for
    each batch, nothing for each row.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._lock = Lock()
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self.rows = dict.fromkeys(STAGES, 0)

    @contextmanager
    def timed(self, stage: str, rows: int) -> Iterator[None]:
        """Add the duration of the body and so many rows to a stage, if the body succeeds."""
        began_s = self._now_s()
        yield
        self.add(stage, self._now_s() - began_s, rows)

    def add(self, stage: str, seconds: float, rows: int) -> None:
        """Add seconds and rows to a stage."""
        with self._lock:
            self.seconds[stage] += seconds
            self.rows[stage] += rows
