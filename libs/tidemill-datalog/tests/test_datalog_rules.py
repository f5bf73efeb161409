"""The rules of the language, each by the conformance cases that decide it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from tidemill.testkit.conformance.casefiles import FoundCase, find_cases
from tidemill.testkit.conformance.registry import Case, Options, run_case

VECTORS = Path(__file__).parents[3] / "libs" / "tidemill-testkit" / "tests" / "vectors" / "language"
STRATEGIES = [Options(strategy="strata"), Options(strategy="retraction")]
RULES = [
    pytest.param("R1", "X01 X12 X16", marks=pytest.mark.rule("R1")),
    pytest.param("R2", "X12 X13", marks=pytest.mark.rule("R2")),
    pytest.param("R3", "X15 X39 X40 X63", marks=pytest.mark.rule("R3")),
    pytest.param("R4", "X01 X02", marks=pytest.mark.rule("R4")),
    pytest.param("R5", "X02 X04 X05 X69", marks=pytest.mark.rule("R5")),
    pytest.param("R6", "X06", marks=pytest.mark.rule("R6")),
    pytest.param("R7", "X11", marks=pytest.mark.rule("R7")),
    pytest.param("R8", "X03 X08", marks=pytest.mark.rule("R8")),
    pytest.param("R9", "X03 X50 X70", marks=pytest.mark.rule("R9")),
    pytest.param("R10", "X08 X09 X57", marks=pytest.mark.rule("R10")),
    pytest.param("R11", "X32 X33 X35 X44", marks=pytest.mark.rule("R11")),
    pytest.param("R12", "X28 X29 X30 X42", marks=pytest.mark.rule("R12")),
    pytest.param("R13", "X65 X66 X67", marks=pytest.mark.rule("R13")),
    pytest.param("R14", "X36 X37 X38", marks=pytest.mark.rule("R14")),
    pytest.param("R15", "X19", marks=pytest.mark.rule("R15")),
    pytest.param("R16", "X21 X74", marks=pytest.mark.rule("R16")),
    pytest.param("R17", "X23 X26", marks=pytest.mark.rule("R17")),
    pytest.param("R18", "X24", marks=pytest.mark.rule("R18")),
    pytest.param("R19", "X27", marks=pytest.mark.rule("R19")),
    pytest.param("R21", "X45 X52", marks=pytest.mark.rule("R21")),
    pytest.param("R22", "X49 X51", marks=pytest.mark.rule("R22")),
    pytest.param("R24", "X47 X75", marks=pytest.mark.rule("R24")),
    pytest.param("R25", "X53", marks=pytest.mark.rule("R25")),
    pytest.param("R26", "X54 X59", marks=pytest.mark.rule("R26")),
    pytest.param("R27", "N23 X60 X62", marks=pytest.mark.rule("R27")),
    pytest.param("R28", "R09 R31", marks=pytest.mark.rule("R28")),
    pytest.param("R29", "N19 N20", marks=pytest.mark.rule("R29")),
    pytest.param("R33", "X23", marks=pytest.mark.rule("R33")),
    pytest.param("R35", "N29 R22 R23", marks=pytest.mark.rule("R35")),
]


@cache
def cases() -> dict[str, Case]:
    """By id: those about events, and those about programs to refuse."""
    files = [*sorted(VECTORS.glob("events-*.yaml")), *sorted(VECTORS.glob("reject-*.yaml"))]
    found: dict[str, Case] = {}
    for each in find_cases(files):
        assert isinstance(each, FoundCase), each
        assert found.setdefault(each.case["id"], each.case) is each.case, each.name
    return found


@pytest.mark.parametrize(("rule", "named"), RULES, ids=[str(each.values[0]) for each in RULES])
def test_a_rule_of_the_language_holds_on_every_engine(rule: str, named: str) -> None:
    for name in named.split():
        for options in STRATEGIES:
            assert run_case(cases()[name], options) == [], (rule, name, options)
