"""A program evaluated once by the dataflow: all that it says of inputs that are known whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.dataflow import evaluate_plan
from tidemill.datalog.limits import Limits
from tidemill.datalog.logical.plan import LogicalPlan, logical_plan
from tidemill.datalog.presence import ErrorPresence, Presence


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Presences of derived predicates below an instant, and the errors."""

    presences: Mapping[str, Sequence[Presence]]
    errors: Sequence[ErrorPresence]


def evaluated(
    checked: CheckedProgram,
    inputs: Mapping[str, Sequence[Presence]],
    *,
    upper: int,
    limits: Limits | None = None,
    plan: LogicalPlan | None = None,
) -> Evaluation:
    """The answer of a program, or of a plan that was made of its own. Raises: LimitPassed."""
    plan = plan or logical_plan(checked)
    told = {*plan.checked.derived, *(rule.head.predicate for rule in plan.rules)}
    found, errors = evaluate_plan(plan, inputs, upper=upper, told=told, limits=limits)
    return Evaluation({name: found.get(name, ()) for name in told}, errors)
