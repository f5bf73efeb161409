"""Programs without ticks: evaluated in windows over all that is alive, or followed by their
changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from tidemill.catalog.record_rows import PredicateShape, endless, row_of
from tidemill.catalog.schemas import ERROR_SCHEMA, STATE_SCHEMA
from tidemill.datalog.carrying import matches_ends
from tidemill.datalog.incremental import FactBlock, Pause, follows
from tidemill.datalog.limits import LimitPassed
from tidemill.datalog.scratch import Engine, Evaluation
from tidemill.datalog.state import EngineState
from tidemill.errors import Exhausted
from tidemill_compute.settings import ComputeSettings
from tidemill_compute.views.following import CostModel, Followed, Follower
from tidemill_compute.views.input_state import InputState, cut_window
from tidemill_compute.views.shared_inputs import SharedInputs
from tidemill_compute.views.ticking import Ticked
from tidemill_compute.views.view_target import ViewTarget
from tidemill_compute.views.view_updates import (
    Change,
    Maintainer,
    Start,
    Step,
    Stretch,
    block_table,
    differences,
    moved_rows,
    update_table,
)

if TYPE_CHECKING:  # importing it imports numba
    from tidemill.datalog.columnar import Texts, WindowColumns

INSTANT_MAX = 1 << 53
"""Instants from here on are not for columns."""
_MANY_ROWS = 1_000
"""A predicate with more rows than this makes a window slow if it is not on columns."""


class UntickedMaintainer:
    """Maintainer of programs without ticks: by windows if changes are many, else by following them.

    A window with many changes is evaluated over all that is alive in [lower − 1, upper). The window
    before has written the rows at lower − 1, so differences are the begins and ends from `lower`
    on.
    """

    reads_contents = outdated = False
    repeats_state = True
    reads_max = None

    def __init__(
        self,
        target: ViewTarget,
        settings: ComputeSettings,
        shared: SharedInputs | None = None,
    ) -> None:
        self._target = target
        self._settings = settings
        self._shared = shared or SharedInputs()
        self._allowance = target.allowance.apart()
        self._engine: Engine
        self._ways = ""
        self._inputs: Mapping[str, InputState] = {}
        self._follower: Follower | None = None
        self._cost_model = CostModel()
        self._state = EngineState()
        self._by_rows = False
        self._endless = matches_ends(target.program)
        self._fresh = False

    @property
    def mode(self) -> str:
        """`incremental` while it follows changes, `scratch` while it evaluates windows."""
        return "incremental" if self._follower is not None else "scratch"

    def begin(self, start: Start, inputs: Mapping[str, InputState]) -> None:
        """Go on from a start."""
        self._inputs, self._fresh, self._follower = inputs, start.fresh, None
        target, settings = self._target, self._settings
        self._allowance = target.allowance.apart()
        self._engine = Engine(
            target.program, limits=target.limits, columns_from=settings.columns_from,
            allowance=self._allowance,
        )  # fmt: skip
        self._ways = _ways(target, settings)
        self._state = EngineState.from_rows(start.state)

    def fewer(self) -> bool:
        """Never: a window sees all that is alive, however few its changes are."""
        return False

    def call_off(self) -> None:
        """Abandon the window or the changes under way."""
        self._allowance.call_off()

    def when_idle(self, lower: int) -> Callable[[Pause], object] | None:
        """The work that begins following at `lower`; None if it follows, or had better not."""
        if self._follower is not None or self._fresh or self._ways == "windows" or not self._inputs:
            return None
        alive = sum(living.alive for living in self._inputs.values())
        if not self._cost_model.begins_while_idle(alive):
            return None
        aside, state = [living.aside() for living in self._inputs.values()], self._state
        allowance = self._allowance.apart()

        def make(pause: Pause) -> Follower | None:
            try:
                return Follower(self._target, aside, lower, state, allowance, pause)
            except (LimitPassed, Exhausted):
                return None  # if that is so of a window as well, the next one says it

        return make

    def adopt(self, made: object | None) -> None:
        """Follow from now on."""
        if isinstance(made, Follower):
            made.stand_on(self._inputs)
            self._follower, self._allowance = made, made.allowance
            self._cost_model.begun()
        else:
            self._cost_model.interrupted()

    def step(self, lower: int, common: int, half_written: int | None) -> Step:
        """Evaluate one window, or follow the changes in it."""
        inputs = list(self._inputs.values())
        self._allowance.beside = sum(living.bytes_held for living in inputs)
        self._allowance.require(0)
        if half_written is not None:
            # A window that was half written is written again as it was: the state is one of its
            # end.
            upper = half_written
        else:
            upper = cut_window(inputs, lower, common, self._changes_max(inputs))
        if self._few(upper):
            if self._follower is None:
                self._follower = Follower(self._target, inputs, lower, self._state, self._allowance)
            updates = self._followed(self._follower.step(upper), upper)
        else:
            if self._follower is not None:
                self._state, self._follower = self._follower.state(), None
                self._engine.allowance = self._allowance
            updates = self._window(lower, upper)
        self._fresh = False
        return Step(upper, updates)

    def _changes_max(self, inputs: Sequence[InputState]) -> int:
        """Changes that a window may hold; on columns at least as many as the rows alive in the
        inputs.
        """
        most = self._settings.window_changes_max
        if self._follower is None and any(living.on_columns for living in inputs):
            return max(most, sum(living.alive for living in inputs))
        return most

    def _few(self, upper: int) -> bool:
        """Whether the changes before `upper` are followed; a view begins with a window."""
        if self._fresh or self._ways == "windows":
            return False
        if self._ways == "changes":
            return True
        changes = sum(living.waiting(upper) for living in self._inputs.values())
        alive = sum(living.alive for living in self._inputs.values())
        on_columns = self._wants_columns(upper) and not self._by_rows
        return self._cost_model.follows(self._follower is not None, changes, alive, on_columns)

    def _wants_columns(self, upper: int) -> bool:
        """Whether inputs are large enough for columns, or held on them already."""
        least = self._settings.columns_from
        return (
            least is not None
            and upper < INSTANT_MAX
            and any(
                living.on_columns or living.alive + living.waiting(upper) >= least
                for living in self._inputs.values()
            )
        )

    def _followed(self, followed: Followed, upper: int) -> list[tuple[str, pa.Table]]:
        """Updates of the outputs that follow from the changes of the inputs."""
        gone, come = followed.state_gone, followed.state_come
        rows = moved_rows(gone, come, upper - 1)
        updates = [(self._target.state, update_table(rows, STATE_SCHEMA))]
        facts: dict[str, list[Change]] = {name: [] for name in self._target.outputs}
        writers = {name: row_of(shape) for name, (_, shape) in self._target.outputs.items()}
        blocks: dict[str, list[pa.Table]] = {name: [] for name in self._target.outputs}
        failed = [((e.text,), int(e.at), e.diff) for e in followed.changes.errors]
        for part in followed.changes.facts.parts:
            if isinstance(part, FactBlock) and not self._endless:
                if part.predicate in blocks:
                    schema = self._target.outputs[part.predicate][1].schema
                    blocks[part.predicate].append(block_table(part, schema))
                continue
            for change in part.changes() if isinstance(part, FactBlock) else part:
                name = change.record.predicate
                error = endless(change.record) if self._endless and name in facts else None
                if error is not None:
                    failed.append(((error,), int(change.at), change.diff))
                elif name in facts:
                    facts[name].append((writers[name](change.record), int(change.at), change.diff))
        for name, (collection, shape) in self._target.outputs.items():
            rows = update_table(facts[name], shape.schema)
            updates.append((collection, pa.concat_tables([rows, *blocks[name]])))
        updates.append((self._target.errors, update_table(failed, ERROR_SCHEMA)))
        return updates

    def _window(self, lower: int, upper: int) -> list[tuple[str, pa.Table]]:
        """Evaluate the window [lower − 1, upper) over all that is alive in it."""
        # A fresh view writes all that is present at its first instant; later windows look back one.
        seen = lower if self._fresh else lower - 1
        before = self._state
        evaluation = self._evaluated(seen if lower else None, upper)
        self._state = evaluation.state
        gone, come = evaluation.state.changes_since(before)
        rows = moved_rows(gone, come, upper - 1)
        updates = [(self._target.state, update_table(rows, STATE_SCHEMA))]
        failed: list[Stretch] = [((e.text,), e.start, e.end) for e in evaluation.errors]
        for predicate, (collection, shape) in self._target.outputs.items():
            refused = failed if self._endless else None
            found = _output(evaluation, predicate, shape, (seen, lower, upper), refused)
            updates.append((collection, found))
        errors = differences(failed, seen, lower, upper)
        updates.append((self._target.errors, update_table(errors, ERROR_SCHEMA)))
        return updates

    def _evaluated(self, seen: int | None, upper: int) -> Evaluation:
        """Evaluate what is alive from `seen` on: on columns as far as inputs are large and
        suited.
        """
        columns: dict[str, WindowColumns] = {}
        if self._wants_columns(upper):
            texts = self._texts()
            for name, living in self._inputs.items():
                found = living.advance_columns(upper, texts)
                if found is not None:
                    columns[name] = found
        rows = {
            name: living.advance(upper)
            for name, living in self._inputs.items()
            if name not in columns
        }
        if not columns:
            return self._engine.evaluate(rows, lower=seen, upper=upper, state=self._state)
        evaluation = self._engine.evaluate_columns(
            columns, rows=rows, lower=seen, upper=upper, state=self._state
        )
        derived = [evaluation.tables[name] for name in self._target.program.derived]
        self._by_rows = any(not t.on_columns and len(t.rows) > _MANY_ROWS for t in derived)
        return evaluation

    def _texts(self) -> Texts:
        """The numbers of texts, those of all views of the process; others after most of them are of
        rows that are gone.
        """
        bulk = self._engine.column_bulk()
        texts = self._shared.texts(sum(living.alive for living in self._inputs.values()))
        return texts if bulk.texts is texts else bulk.forget_texts(texts)


def _output(
    evaluation: Evaluation,
    predicate: str,
    shape: PredicateShape,
    window: tuple[int, int, int],
    refused: list[Stretch] | None,
) -> pa.Table:
    """Begins and ends of one predicate from `lower` on; rows that no collection holds go to
    `refused`.

    `window` is the instant that was seen before, `lower` and `upper`.
    """
    seen, lower, upper = window
    table = evaluation.tables.get(predicate)
    if table is not None and table.on_columns and shape.arguments and refused is None:
        from tidemill_compute.views.column_rows import column_updates  # columns import numba

        return column_updates(table.columns, shape, seen, lower, upper)  # type: ignore[attr-defined]  # a table on columns has them
    row = row_of(shape)
    stretches: list[Stretch] = []
    for p in evaluation.presences[predicate]:
        error = None if refused is None else endless(p.record)
        if refused is not None and error is not None:
            refused.append(((error,), p.start, p.end))
        else:
            stretches.append((row(p.record), p.start, p.end))
    return update_table(differences(stretches, seen, lower, upper), shape.schema)


def _ways(target: ViewTarget, settings: ComputeSettings) -> str:
    """The maintenance of the view: the word of the resource counts before the setting of the
    process.

    A program of which a part is evaluated anew at each change is followed only on request.
    """
    if target.engine == "scratch":
        return "windows"
    if target.engine == "incremental":
        return "changes"
    if settings.maintenance == "auto" and not follows(target.program):
        return "windows"
    return settings.maintenance


def maintainer_of(
    target: ViewTarget, settings: ComputeSettings, shared: SharedInputs
) -> Maintainer:
    """The maintainer of a view, by its ticks and its engine. Cost: the import of numba.

    A view of which nothing is asked is a dataflow if each of its constructs has an operator.
    """
    if target.ticks is not None:
        return Ticked(target, settings, shared)
    if target.engine == "dataflow" or _by_dataflow(target, settings):
        from tidemill_compute.views.dataflow import DataflowMaintainer  # imports numba

        return DataflowMaintainer(target, settings, shared)
    return UntickedMaintainer(target, settings, shared)


def _by_dataflow(target: ViewTarget, settings: ComputeSettings) -> bool:
    if target.engine != "auto" or settings.maintenance != "auto":
        return False
    from tidemill.datalog.dataflow import missing_in  # imports numba

    return missing_in(target.program) is None
