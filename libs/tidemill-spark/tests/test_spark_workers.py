"""The parent of Python workers imports once what tasks of all jobs need."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from importlib.metadata import EntryPoint

import pytest

from tidemill.spark import worker_daemon


def test_workers_begin_with_the_modules_that_services_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, there = list[str](), list[bool]()

    def named(group: str) -> Sequence[EntryPoint]:
        asked.append(group)
        return [EntryPoint("a job", "colorsys", group)]

    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    monkeypatch.setattr(worker_daemon, "entry_points", named)
    monkeypatch.setattr("pyspark.daemon.manager", lambda: there.append("colorsys" in sys.modules))
    worker_daemon.main()
    gc.unfreeze()
    assert (asked, there) == (["tidemill.spark.jobs"], [True])
