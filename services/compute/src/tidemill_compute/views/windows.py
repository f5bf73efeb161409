"""A view with a construct that the dataflow lacks: windows over all that is alive."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from tidemill.catalog.record_rows import endless, row_of
from tidemill.catalog.schemas import ERROR_SCHEMA, STATE_SCHEMA
from tidemill.datalog.carrying import matches_ends
from tidemill.datalog.presence import Presence
from tidemill.datalog.records import Record
from tidemill.datalog.scratch import Engine
from tidemill.datalog.state import EngineState
from tidemill_compute.settings import ComputeSettings
from tidemill_compute.views.input_state import InputState, cut_step
from tidemill_compute.views.view_target import ViewTarget
from tidemill_compute.views.view_updates import (
    Change,
    Row,
    Start,
    Step,
    moved_rows,
    update_table,
)

Stretch: TypeAlias = "tuple[Row, float, float]"


class WindowMaintainer:
    """Maintainer of programs without ticks: each step evaluates all that is alive in it.

    The step before has written the rows at lower − 1, so differences are the begins and ends from
    `lower` on.
    """

    outdated = False
    reads_max = None

    def __init__(self, target: ViewTarget, settings: ComputeSettings) -> None:
        self._target = target
        self._settings = settings
        self._allowance = target.allowance.apart()
        self._inputs: Mapping[str, InputState] = {}
        self._state = EngineState()
        self._endless = matches_ends(target.program)
        self._fresh = False

    def begin(self, start: Start, inputs: Mapping[str, InputState]) -> None:
        """Go on from a start."""
        self._inputs, self._fresh = inputs, start.fresh
        self._allowance = self._target.allowance.apart()
        self._state = EngineState.from_rows(start.state)

    def fewer(self) -> bool:
        """Never: a window sees all that is alive, however few its changes are."""
        return False

    def call_off(self) -> None:
        """Abandon the window under way."""
        self._allowance.call_off()

    def step(self, lower: int, common: int, half_written: int | None) -> Step:
        """Evaluate one window."""
        target, inputs = self._target, list(self._inputs.values())
        self._allowance.beside = sum(living.bytes_held for living in inputs)
        self._allowance.require(0)
        upper = half_written or cut_step(inputs, lower, common, self._settings.step_changes_max)
        # A fresh view writes all that is present at its first instant; later windows look back one.
        seen = lower if self._fresh else lower - 1
        engine = Engine(target.program, limits=target.limits, allowance=self._allowance)
        given = {name: _presences(living, upper) for name, living in self._inputs.items()}
        evaluation = engine.evaluate(
            given, lower=seen if lower else None, upper=upper, state=self._state
        )
        gone, come = evaluation.state.changes_since(self._state)
        self._state, self._fresh = evaluation.state, False
        rows = moved_rows(gone, come, upper - 1)
        updates = [(target.state, update_table(rows, STATE_SCHEMA))]
        failed: list[Stretch] = [((e.text,), e.start, e.end) for e in evaluation.errors]
        for predicate, (collection, shape) in target.outputs.items():
            row, stretches = row_of(shape), list[Stretch]()
            for p in evaluation.presences[predicate]:
                error = endless(p.record) if self._endless else None
                if error is None:
                    stretches.append((row(p.record), p.start, p.end))
                else:
                    failed.append(((error,), p.start, p.end))
            found = _differences(stretches, seen, lower, upper)
            updates.append((collection, update_table(found, shape.schema)))
        errors = _differences(failed, seen, lower, upper)
        return Step(upper, [*updates, (target.errors, update_table(errors, ERROR_SCHEMA))])


def _presences(living: InputState, upper: int) -> list[Presence]:
    """The presences of the window [lower − 1, upper); the input then begins at `upper`.

    Raises: Corrupt as `InputState.take`.
    """
    since: dict[int, tuple[Record, int]] = {}
    for record in living.present():
        since[id(record)] = record, living.lower - 1
    found = []
    for record, at, diff in living.take(upper):
        if diff > 0:
            since[id(record)] = record, at
        else:
            found.append(Presence(record, since.pop(id(record))[1], at))
    return found + [Presence(record, start) for record, start in since.values()]


def _differences(stretches: Iterable[Stretch], seen: int, lower: int, upper: int) -> list[Change]:
    """Begins and ends at instants in [lower, upper): (row, time, ±1).

    A presence that was seen at an instant before `lower` was written then, and does not begin
    again.
    """
    changes: list[Change] = []
    for row, start, end in stretches:
        if start >= lower or seen == lower:
            changes.append((row, max(lower, int(max(start, 0))), 1))
        if end < upper:
            changes.append((row, int(end), -1))
    return changes
