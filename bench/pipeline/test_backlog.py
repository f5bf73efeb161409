"""A backlog is compared with Flink where that runs, else with a run of ours that nothing harmed."""

from __future__ import annotations

from argparse import Namespace
from typing import Any, cast

import pyarrow as pa
import pytest

from bench.pipeline import __main__ as bench
from bench.pipeline import sides
from bench.pipeline.sides import Options, Run
from bench.pipeline.workloads import WORKLOADS

JOB = next(name for name, workload in WORKLOADS.items() if workload.rows is None)


@pytest.mark.parametrize(("without", "runs"), [([], ["kill"]), (["flink"], ["", "kill"])])
def test_an_unharmed_run_is_made_only_to_be_compared_with(
    monkeypatch: pytest.MonkeyPatch, without: list[str], runs: list[str]
) -> None:
    made: list[str] = []
    run = Run({}, pa.table({WORKLOADS[JOB].answers.time: [1]}))

    def one(name: str, workload: Any, options: Options) -> Run:
        made.append(options.kill)
        return run

    monkeypatch.setattr(bench, "one", one)
    monkeypatch.setattr(bench, "warm_up", lambda *_: None)
    monkeypatch.setattr(sides, "last_compared", lambda *_: 1)
    monkeypatch.setattr(sides, "flink", lambda *_: run)
    chosen = Namespace(kill=["kill"], steady=False, without=without, repetitions=1)
    options = Options("", 1, 1.0, 1.0, None)
    found = bench.backlog(JOB, options, cast("Any", chosen))
    assert made == runs
    assert ("flink" in found) == (without == [])
