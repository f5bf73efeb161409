"""Own cases in the form of the conformance cases, for sentences that those do not test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.testkit.conformance.casefiles import FoundCase, find_cases
from tidemill.testkit.conformance.registry import Options, run_case

FILES = sorted((Path(__file__).parent / "cases").glob("*.yaml"))


@pytest.mark.parametrize("strategy", ["strata", "retraction"])
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_dataflow_answers_every_case_of_the_file(file: Path, strategy: str) -> None:
    failures: dict[str, list[str]] = {}
    for case in find_cases([file]):
        assert isinstance(case, FoundCase), case
        differences = run_case(case.case, Options(strategy=strategy))
        if differences:
            failures[case.name] = differences
    assert failures == {}
