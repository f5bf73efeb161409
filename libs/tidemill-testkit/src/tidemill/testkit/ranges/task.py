"""One range of one fragment in one interval: from rows and state to changes and state.

The same function runs in a task of Spark, and in a process for as many ranges as there are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from tidemill.datalog.dataflow import DataflowEngine
from tidemill.datalog.limits import Limits
from tidemill.datalog.logical.partial import plan_in
from tidemill.datalog.placement.places import Fragment
from tidemill.datalog.placement.shares import shares_of
from tidemill.datalog.presence import ErrorMove, Instant
from tidemill.datalog.records import Record
from tidemill.datalog.state import StateRow
from tidemill.datalog.strategy import Strategy

Update: TypeAlias = "tuple[Record, int, int, int]"
"""A fact that is there `diff` times more on [start, end); instants are words of the dataflow."""
Move: TypeAlias = "tuple[Instant, Record, int]"
"""A derived fact begins, or ends, at an instant."""


@dataclass(frozen=True, slots=True)
class RangeContents:
    """The facts that a range reads, by name, and the state of its fragment, before an interval."""

    present: Mapping[str, Sequence[Update]] = field(default_factory=dict)
    state: Sequence[StateRow] = ()


@dataclass(frozen=True, slots=True)
class RangeTask:
    """The task of one of the `ranges` of a fragment for [lower, upper); `lower` None begins.

    `changes` are of the facts that it reads, by name, from `lower` on.
    """

    fragment: int
    number: int
    ranges: int
    lower: int | None
    upper: int
    part: RangeContents
    changes: Mapping[str, Sequence[Update]]


@dataclass(frozen=True, slots=True)
class RangeAnswer:
    """The answer of a range for an interval: changes of facts and errors, and of its state.

    `rows` are those that each predicate has at its end.
    """

    moves: Mapping[str, Sequence[Move]]
    errors: Sequence[ErrorMove]
    gone: Sequence[StateRow]
    come: Sequence[StateRow]
    rows: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class RangeSettings:
    """Settings that all ranges of an evaluation have in common."""

    strategy: Strategy = "strata"
    limits: Limits | None = None


def evaluate_range(
    fragment: Fragment,
    task: RangeTask,
    told: Collection[str],
    settings: RangeSettings,
) -> RangeAnswer:
    """The changes of the predicates `told` in an interval, and of the errors and the state.

    A fragment by rounds begins anew in each interval: it tells also the facts of just before it.
    Pure. The answer is that of an engine that has been there from the beginning. Raises: Exhausted,
    LimitPassed, Corrupt. Cost: the rows of the part and what follows from the changes.
    """
    mine = [name for name in fragment.derives if name in told]
    engine = DataflowEngine(
        fragment.plan.checked, plan=plan_in(fragment.plan, task.number), strategy=settings.strategy,
        told=mine, keeps_state=True, limits=settings.limits, whole=fragment.whole,
    )  # fmt: skip
    if task.lower is not None:
        shares = shares_of(fragment, task.number, task.ranges)
        engine.restore(task.part.state, task.lower, shares)
        for name, updates in task.part.present.items():
            began = task.lower - 1
            engine.feed_records(name, [(record, began, end, n) for record, _, end, n in updates])
        if not fragment.returning:
            engine.step(task.lower)
            engine.tell_errors()
            engine.tell_state()
    for name, updates in task.changes.items():
        engine.feed_records(name, updates)
    moves = {
        name: list(each.contributions() if name in fragment.whole else each.records())
        for name, each in engine.step(task.upper).items()
    }
    gone, come = engine.tell_state()
    rows = {name: engine.rows(name) for name in fragment.derives}
    return RangeAnswer(moves, engine.tell_errors(), gone, come, rows)
