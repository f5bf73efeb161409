"""Programs of cases range by range, in windows of which each begins from stored parts."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.dataflow.evaluating import undeclared
from tidemill.datalog.placement import placement_of
from tidemill.datalog.presence import BEGINNING, END, Instant
from tidemill.testkit.conformance.language_inputs import Delivery
from tidemill.testkit.conformance.registry import Evaluator
from tidemill.testkit.conformance.values import CaseError
from tidemill.testkit.evaluated import Evaluation
from tidemill.testkit.ranges.evaluating import Changes, Evaluate, driven, feed
from tidemill.testkit.ranges.packing import (
    RangeFailed,
    evaluate_packed,
    pack_program,
    pack_task,
    unpack_answer,
)
from tidemill.testkit.ranges.running import Ranges
from tidemill.testkit.ranges.task import RangeAnswer, RangeSettings, RangeTask

RANGES = 3
CUTS = 2
"""Cuts in time of each case: it has one window more."""


def evaluated_in_windows(
    checked: CheckedProgram,
    deliveries: Sequence[Delivery],
    upper: int,
    settings: RangeSettings,
    evaluator: Evaluator | None,
) -> Evaluation:
    """The answer below `upper`. Raises: CaseError where a range has none."""
    carrying = {name for _, delivered in deliveries for name in undeclared(checked, delivered)}
    placement = placement_of(checked, carrying)
    evaluator = evaluator or _Here()
    if not placement.divided:
        evaluator.whole(placement.fragments[-1].reason if placement.fragments else "no rules")
    running = Ranges(placement, RANGES, checked.derived, settings)
    known: Instant = BEGINNING
    for frontier, delivered in deliveries:
        known = max(known, min(frontier, upper))
        feed(running, delivered, known)
    evaluate = _packed(evaluator, pack_program(checked, carrying, settings))
    told = Changes()
    for at in (*cuts_of(deliveries, upper), upper):
        told.take(driven(running.step(at), evaluate))
    return told.evaluation(checked.derived)


class _Here:
    """Evaluates ranges in this process, as a task of Spark does."""

    def evaluate(self, program: bytes, tasks: Sequence[bytes]) -> Sequence[bytes]:
        """The packed answers of ranges to their packed tasks."""
        return [evaluate_packed(program, task) for task in tasks]

    def whole(self, reason: str) -> None:
        """Do nothing."""


def _packed(evaluator: Evaluator, program: bytes) -> Evaluate:
    def evaluate(tasks: Sequence[RangeTask]) -> Sequence[RangeAnswer]:
        try:
            return [*map(unpack_answer, evaluator.evaluate(program, [*map(pack_task, tasks)]))]
        except RangeFailed as failed:
            raise CaseError(f"a range has no answer: {failed}") from None

    return evaluate


def cuts_of(deliveries: Sequence[Delivery], upper: int) -> list[int]:
    """Instants below `upper` at which windows end, spread over those at which facts change."""
    found = {upper - 2, upper - 1}
    for known, delivered in deliveries:
        for presences in delivered.values():
            for each in presences:
                instants = (max(known, each.start), each.end)
                found |= {int(at) + 1 for at in instants if BEGINNING < at < END}
    inside = sorted(at for at in found if at < upper)
    return [inside[len(inside) * n // (CUTS + 1)] for n in range(1, CUTS + 1)]
