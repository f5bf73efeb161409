"""A rule that is lowered like one before it has the plan that it has alone."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass

import numpy as np
import pytest
from hypothesis import given

from tidemill.datalog.check import check
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.columns.texts import Texts
from tidemill.datalog.dataflow import alike, lower, lowering
from tidemill.datalog.dataflow.carried import NumberedValues
from tidemill.datalog.dataflow.kept_plans import numbered
from tidemill.datalog.dataflow.lowered_collections import LoweredCollections
from tidemill.datalog.dataflow.plan import DataflowPlan, RulePlan
from tidemill.datalog.dataflow.rules import RuleLowering
from tidemill.datalog.dataflow.schema import NotInDataflow
from tidemill.datalog.dataflow.ticked_plan import plan_of
from tidemill.datalog.logical.forms import RuleForm
from tidemill.datalog.parser import parse
from tidemill.testkit.drawing import drawn
from tidemill.testkit.tidelog import CATALOG, Example, programs, programs_alike


class EachAlone:
    """The twin of `AlikeRules`: lowers each rule by itself."""

    def __init__(self, program: LoweredCollections) -> None:
        self._program = program

    def plan(self, rule: RuleForm, loop: Sequence[str]) -> RulePlan:
        return RuleLowering(self._program, rule, loop).plan()


def plain(piece: object) -> object:
    """A plan as tuples; numbers keep their type."""
    if isinstance(piece, np.ndarray):
        return piece.shape, piece.tolist()
    if isinstance(piece, NumberedValues):
        return len(piece)
    if is_dataclass(piece) and not isinstance(piece, type):
        return (type(piece).__name__, *(plain(getattr(piece, f.name)) for f in fields(piece)))
    if isinstance(piece, Mapping):
        return tuple((key, plain(value)) for key, value in piece.items())
    return tuple(map(plain, piece)) if isinstance(piece, tuple) else (type(piece).__name__, piece)


def lowered(checked: CheckedProgram) -> DataflowPlan | str:
    try:
        return numbered(lower(plan_of(checked)), Texts())
    except NotInDataflow as missing:
        return missing.construct


def same_alone(checked: CheckedProgram) -> bool:
    """Whether the plan is the one in which each rule is lowered by itself."""
    found = lowered(checked)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lowering, "AlikeRules", EachAlone)
        return plain(found) == plain(lowered(checked))


def twice(example: Example) -> CheckedProgram:
    """The program, and its rules once more with other predicates."""
    again = re.sub(r"\b([pqtd])\(", r"\1\1(", example.text)
    return check(parse(f"{example.text}\n{again}"), CATALOG)


@drawn(100)
@given(programs() | programs_alike())
def test_a_rule_like_another_one_has_the_plan_that_it_has_alone(example: Example) -> None:
    assert same_alone(twice(example)), example.text


UNLIKE = [
    ("p(x) := s(x, y) ^ s(y, z);", "q(x) := s(x, y) ^ f(y, z);"),
    ("p(x) := s(x, 1);", "q(x) := s(x, 1.0);"),
    ("p(x) := s(x, y) if y > 1;", "q(x) := s(x, y) if y > 1.0;"),
    ("p(x) := r(x) ^ not s(x, 1);", "q(x) := r(x) ^ not s(x, 2);"),
    ("p(x) := r(x) ^ not r(x);", "q(x) := r(x) ^ not a(x);"),
    ("p(x) := r(x) ^ a(x);", "q(x) := a(x) ^ r(x);"),
    ("p(0.0) := r(x);", "q(-0.0) := r(x);"),
    ("p(x) := r(x) ^ p(x);", "q(x) := r(x) ^ p(x);"),
    ("p(g) @sum(x) := s(g, x);", "q(g) @max(x) := s(g, x);"),
    ("p(x) := a(x) ^ a(y) ~time;", "q(x) := a(x) ~time ^ a(y);"),
]


@pytest.mark.parametrize("rules", UNLIKE, ids=lambda rules: " / ".join(rules))
def test_rules_that_only_look_alike_have_plans_of_their_own(rules: tuple[str, str]) -> None:
    assert same_alone(check(parse("\n".join(rules)), CATALOG))


def test_one_rule_of_a_form_is_lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    lowered_alone: list[int] = []

    class Counted(RuleLowering):
        def plan(self) -> RulePlan:
            lowered_alone.append(self.rule.number)
            return super().plan()

    monkeypatch.setattr(alike, "RuleLowering", Counted)
    text = "d0(x) := r(x);\nd1(x) := d0(x) ^ s(x, y) ^ not f(y, x);\n"
    text += "\n".join(f"d{n + 1}(x) := d{n}(x) ^ s(x, y) ^ not f(y, x);" for n in range(1, 40))
    lower(plan_of(check(parse(text), CATALOG)))
    assert len(lowered_alone) == 2
