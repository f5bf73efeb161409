"""Every case of the case files kept with the tests passes, in this process."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tidemill.datalog import values
from tidemill.datalog.functions import FUNCTIONS
from tidemill.testkit.conformance.casefiles import FoundCase, find_cases
from tidemill.testkit.conformance.registry import Options, run_case

VECTORS = Path(__file__).parent / "vectors"
FILES = sorted(file for file in VECTORS.rglob("*") if file.suffix in (".json", ".yaml"))


LANGUAGE = {strategy: Options(strategy=strategy) for strategy in ("strata", "retraction")}
LANGUAGE["ranges"] = Options("ranges")


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(VECTORS)))
def test_the_product_answers_every_case_of_the_file(file: Path) -> None:
    found = list(find_cases([file]))
    assert found
    failures: dict[str, list[str]] = {}
    for case in found:
        assert isinstance(case, FoundCase), case
        ways = LANGUAGE if case.covers is not None else {"core": Options()}
        for way, options in ways.items():
            differences = run_case(case.case, options)
            if differences:
                failures[f"{case.name} {way}"] = differences
    assert failures == {}


CASES = VECTORS.parents[2] / "tidemill-datalog" / "tests" / "cases"
REASONS = [told for name, told in vars(values).items() if name.isupper() and isinstance(told, str)]


def test_every_function_and_every_reason_of_failure_has_a_case() -> None:
    programs, failures = set[str](), set[str]()
    for found in find_cases([VECTORS / "language", CASES]):
        assert isinstance(found, FoundCase), found
        programs |= set(re.findall(r"(\w+)\(", str(found.case["program"])))
        failures |= {str(each) for each in found.case.get("errors", ())}
    assert set(FUNCTIONS) - programs == set()
    told = [reason for reason in REASONS if any(f" {reason}: " in each for each in failures)]
    assert told == REASONS


def test_the_ids_of_all_cases_differ() -> None:
    names = [case.name for case in find_cases([VECTORS])]
    assert len(names) == len(set(names))
    assert len(FILES) >= 12
