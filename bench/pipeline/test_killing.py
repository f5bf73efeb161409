"""A death at a stage counts where work was left, and a failure of it is no silence."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, cast

import pytest

from bench.pipeline.killing import Killing, NotKilled
from bench.pipeline.system import Member, Metrics, System
from tidemill.runtime.metrics import STAGE_ROWS


class Fake(System):
    """A process whose stage has had some rows, and after its death others."""

    def __init__(self, before: int, after: int, fails: bool = False) -> None:
        super().__init__([Member("compute", Path(), cast("Any", None))])
        self.rows, self.after, self.fails, self.killed = before, after, fails, False

    def read(self, member: Member, found: Metrics) -> None:
        found.read(f'{STAGE_ROWS.name}{{stage="stage"}} {self.rows}\n')

    def kill(self, member: Member) -> None:
        self.killed = True
        if self.fails:
            raise OSError("no such program")
        self.rows = self.after


def killed(system: Fake) -> Killing:
    """The death, once it has come."""
    with Killing(system, "stage") as killing:
        end_s = time.monotonic() + 60
        while not system.killed and time.monotonic() < end_s:
            time.sleep(0.01)
    return killing


def test_a_death_counts_by_the_rows_of_its_own_stage() -> None:
    assert killed(Fake(50, 50)).rows == 50
    with pytest.raises(NotKilled, match="stage: 95 of 100 rows"):
        killed(Fake(95, 5))


def test_a_process_that_does_not_start_again_ends_the_run() -> None:
    with pytest.raises(OSError, match="no such program"):
        killed(Fake(50, 0, fails=True))


def test_a_run_without_rows_of_the_stage_proves_nothing() -> None:
    with (
        pytest.raises(NotKilled, match="stage: 0 of 0 rows"),
        Killing(Fake(0, 0), "stage"),
    ):
        time.sleep(0.05)
