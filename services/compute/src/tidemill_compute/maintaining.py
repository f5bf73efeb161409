"""Programs without ticks: evaluated in windows over all that is alive, or followed by their changes."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from tidemill.datalog.evaluation import Engine, EngineState, Evaluation
from tidemill.datalog.evaluation.state import StateRow
from tidemill.datalog.incremental import FactBlock, follows
from tidemill_compute.following import Followed, Follower, changes_are_few
from tidemill_compute.living import LivingInput, cut_window
from tidemill_compute.record_rows import PredicateShape, row_of
from tidemill_compute.settings import ComputeSettings
from tidemill_compute.view_target import ERROR_SCHEMA, STATE_SCHEMA, ViewTarget
from tidemill_compute.view_updates import (
    Change,
    Start,
    Step,
    block_table,
    differences,
    moved_rows,
    update_table,
)


class Direct:
    """Where a window holds many changes it is evaluated over all that is alive in [lower − 1, upper).

    What is present at lower − 1 was written by the window before, so differences are what begins or
    ends from `lower` on. Where it holds few, they alone are followed.
    """

    reads_contents = False

    def __init__(self, target: ViewTarget, settings: ComputeSettings) -> None:
        self._target = target
        self._settings = settings
        self._engine = Engine(target.program, limits=target.limits)
        self._ways = _ways(target, settings)
        self._inputs: Mapping[str, LivingInput] = {}
        self._follower: Follower | None = None
        self._state: EngineState | None = None
        self._state_rows: set[StateRow] = set()
        self._fresh = False

    @property
    def mode(self) -> str:
        """`incremental` while it follows changes, `scratch` while it evaluates windows."""
        return "incremental" if self._follower is not None else "scratch"

    def begin(self, start: Start, inputs: Mapping[str, LivingInput]) -> None:
        """Go on from a start."""
        self._inputs, self._fresh, self._follower = inputs, start.fresh, None
        self._state = None if start.fresh else EngineState.from_rows(start.state)
        self._state_rows = set(start.state)

    def step(self, lower: int, common: int, half_written: int | None) -> Step:
        """Evaluate one window, or follow the changes in it."""
        inputs = list(self._inputs.values())
        upper = cut_window(inputs, lower, common, self._settings.window_changes_max)
        if half_written is not None:
            # A window that was half written is written again as it was: the state is one of its end.
            upper = half_written
        if self._few(upper):
            if self._follower is None:
                self._follower = Follower(self._target, inputs, lower, self._state)
            updates = self._followed(self._follower.step(upper), upper)
        else:
            if self._follower is not None:
                self._state, self._follower = self._follower.state(), None
            updates = self._window(lower, upper)
        self._fresh = False
        return Step(upper, updates)

    def _few(self, upper: int) -> bool:
        """Whether the changes before `upper` are followed; a view begins with a window."""
        if self._fresh or self._ways == "windows":
            return False
        following = self._follower is not None
        return self._ways == "changes" or changes_are_few(self._inputs.values(), upper, following)

    def _followed(self, followed: Followed, upper: int) -> list[tuple[str, pa.Table]]:
        """What the changes of the inputs have changed, as updates."""
        gone, come = followed.state_gone, followed.state_come
        self._state_rows.difference_update(gone)
        self._state_rows.update(come)
        rows = moved_rows(gone, come, upper - 1)
        updates = [(self._target.state, update_table(rows, STATE_SCHEMA))]
        facts: dict[str, list[Change]] = {name: [] for name in self._target.outputs}
        writers = {name: row_of(shape) for name, (_, shape) in self._target.outputs.items()}
        blocks: dict[str, list[pa.Table]] = {name: [] for name in self._target.outputs}
        for part in followed.changes.facts.parts:
            if isinstance(part, FactBlock):
                if part.predicate in blocks:
                    schema = self._target.outputs[part.predicate][1].schema
                    blocks[part.predicate].append(block_table(part, schema))
                continue
            for change in part:
                name = change.record.predicate
                if name in facts:
                    facts[name].append((writers[name](change.record), int(change.at), change.diff))
        for name, (collection, shape) in self._target.outputs.items():
            rows = update_table(facts[name], shape.schema)
            updates.append((collection, pa.concat_tables([rows, *blocks[name]])))
        failed = [((e.text,), int(e.at), e.diff) for e in followed.changes.errors]
        updates.append((self._target.errors, update_table(failed, ERROR_SCHEMA)))
        return updates

    def _window(self, lower: int, upper: int) -> list[tuple[str, pa.Table]]:
        """Evaluate the window [lower − 1, upper) over all that is alive in it."""
        presences = {name: living.advance(upper) for name, living in self._inputs.items()}
        # A fresh view writes all that is present at its first instant; later windows look back one.
        seen = lower if self._fresh else lower - 1
        evaluation = self._engine.evaluate(
            presences, lower=seen if lower else None, upper=upper, state=self._state
        )
        self._state = evaluation.state
        before, after = self._state_rows, set(evaluation.state.to_rows())
        self._state_rows = after
        rows = moved_rows(before - after, after - before, upper - 1)
        updates = [(self._target.state, update_table(rows, STATE_SCHEMA))]
        for predicate, (collection, shape) in self._target.outputs.items():
            found = _output(evaluation, predicate, shape, seen, lower, upper)
            updates.append((collection, found))
        failed = (((e.text,), e.start, e.end) for e in evaluation.errors)
        errors = differences(failed, seen, lower, upper)
        updates.append((self._target.errors, update_table(errors, ERROR_SCHEMA)))
        return updates


def _output(
    evaluation: Evaluation, predicate: str, shape: PredicateShape, seen: int, lower: int, upper: int
) -> pa.Table:
    """What begins or ends of one predicate from `lower` on."""
    table = evaluation.tables.get(predicate)
    if table is not None and table.on_columns and shape.arguments:
        from tidemill_compute.column_rows import column_updates  # columns import numba

        return column_updates(table.columns, shape, seen, lower, upper)  # type: ignore[attr-defined]  # a table on columns has them
    row = row_of(shape)
    stretches = ((row(p.record), p.start, p.end) for p in evaluation.presences[predicate])
    return update_table(differences(stretches, seen, lower, upper), shape.schema)


def _ways(target: ViewTarget, settings: ComputeSettings) -> str:
    """How the view may be kept up to date: the resource's word counts before the process's setting.

    A program of which a part is evaluated anew at each change is followed only if somebody asks for it.
    """
    if target.engine == "scratch":
        return "windows"
    if target.engine == "incremental":
        return "changes"
    if settings.maintenance == "auto" and not follows(target.program):
        return "windows"
    return settings.maintenance
