"""A death in the middle of a backlog: the process of a stage is killed, and started anew."""

from __future__ import annotations

import time
from threading import Thread
from typing import Self

from bench.pipeline.system import Metrics, System
from tidemill.runtime.metrics import STAGE_ROWS

MEMBERS = {
    "decode": "ingest", "bind": "remap-reclock", "write": "remap-reclock", "stage": "compute",
    "operators": "compute",
}  # fmt: skip
"""Stages, each with the process of a system with roles that is killed at it."""
LOOK_S = 0.02
LATEST = 0.9
"""Of the rows of a stage: one that has had more of them is as good as over."""


class NotKilled(Exception):
    """The stage was over before a death came into it: the run proves nothing."""


class Killing:
    """Kills the process of a stage once it has `at` rows of the stage and more are to come.

    `rows` are those that the process had had at that stage. Without a `stage` nothing is killed.
    """

    def __init__(self, system: System, stage: str, at: int = 1) -> None:
        self.rows = 0
        self._system, self._stage, self._at = system, stage, at
        self._over = False
        self._failed: BaseException | None = None
        self._thread = Thread(target=self._run)

    def __enter__(self) -> Self:
        if self._stage:
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *raised: object) -> None:
        self._over = True
        if self._stage:
            self._thread.join()
            if self._failed is not None:
                raise self._failed
            if kind is None:
                self._require_more()

    def _require_more(self) -> None:
        """Raises: NotKilled, where the process after it had few rows or none."""
        after = int(self._system.metrics().total(STAGE_ROWS.name, stage=self._stage))
        total = self.rows + after
        if not 0 < self.rows < LATEST * total:
            raise NotKilled(f"{self._stage}: {self.rows:,} of {total:,} rows")

    def _run(self) -> None:
        try:
            self._kill()
        except BaseException as error:  # also the exit of whoever finds no process
            self._failed = error

    def _kill(self) -> None:
        (member,) = (m for m in self._system.members if m.name == MEMBERS[self._stage])
        while not self._over:
            found = Metrics()
            with self._system.looking:
                self._system.read(member, found)
                rows = found.total(STAGE_ROWS.name, stage=self._stage)
                if rows >= self._at:
                    self._system.kill(member)
                    self.rows = int(rows)
                    return
            time.sleep(LOOK_S)
