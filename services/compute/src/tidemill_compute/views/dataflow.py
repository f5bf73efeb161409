"""A view kept by the dataflow: each step takes the changes of its inputs in one interval."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from tidemill.arrangement.interval_updates import END_WORD, Change, Sharing
from tidemill.catalog.schemas import ERROR_SCHEMA, STATE_SCHEMA
from tidemill.datalog.carried_lattices import matches_ends
from tidemill.datalog.columns.texts import Texts
from tidemill.datalog.dataflow import DataflowEngine
from tidemill.datalog.dataflow.schema import renumbered
from tidemill.datalog.presence import ErrorMove
from tidemill.datalog.state import StateRow
from tidemill_compute.settings import ComputeSettings
from tidemill_compute.views.input_state import InputState, cut_step
from tidemill_compute.views.interval_rows import (
    changes_of,
    error_moves,
    updates_of,
    without_endless,
)
from tidemill_compute.views.shared_inputs import SharedInputs
from tidemill_compute.views.view_target import ViewTarget
from tidemill_compute.views.view_updates import Start, Step, Updates, moved_rows, update_table

if TYPE_CHECKING:
    from tidemill.datalog.dataflow import OutputChanges

_Found: TypeAlias = "tuple[pa.Table, list[ErrorMove]]"
"""Updates of an output, and the errors in the place of others."""
_FEWER = 4
"""A step that ran out of memory begins again with this part of its changes."""


class DataflowMaintainer:
    """Maintainer of programs without ticks by arrangements of interval updates.

    A backlog and a single change are one way. A restart makes the arrangements again from what the
    inputs hold just before `lower`, and from solutions that outlive their facts.
    """

    def __init__(
        self, target: ViewTarget, settings: ComputeSettings, shared: SharedInputs | None = None
    ) -> None:
        self._target = target
        self._settings = settings
        self._shared = shared or SharedInputs()
        self._allowance = target.allowance.apart()
        self._inputs: Mapping[str, InputState] = {}
        self._endless = matches_ends(target.program)
        self._changes_max = settings.step_changes_max
        self._texts = Texts()
        self._kept: dict[str, Sharing] = {}
        self._engine: DataflowEngine
        self._first: Mapping[str, _Found] = {}
        self._lower = 0

    reads_present = True

    @property
    def reads_max(self) -> int:
        """Changes of one input that are read before they are taken in."""
        return 2 * self._changes_max

    @property
    def outdated(self) -> bool:
        """Whether it has to begin again.

        Texts are numbered anew once most of them are of rows that are gone. Rows that it shares may
        not be kept for it any more.
        """
        lost = any(rows.outdated for rows in self._engine.shared.values())
        return lost or self._shared.texts(self._alive()) is not self._texts

    @property
    def held(self) -> tuple[int, int]:
        """Bytes by its own count, and rows of inputs and outputs."""
        names = (*self._inputs, *self._target.outputs)
        return self._allowance.held, sum(self._engine.rows(name) for name in names)

    def _alive(self) -> int:
        return sum(self._engine.rows(name) for name in self._inputs)

    def begin(self, start: Start, inputs: Mapping[str, InputState]) -> None:
        """Go on from a start. Raises: NotInDataflow, Exhausted, Corrupt."""
        self._inputs = inputs
        texts = self._shared.texts(sum(living.alive for living in inputs.values()))
        self._begin(start, texts, {})

    def go_on(self, start: Start) -> bool:
        """Number texts anew, with the rows of its engine; whether these are all that it needs.

        Rows of values that have numbers of their own are read again, and so are rows that are not
        kept for it any more. Raises: Exhausted.
        """
        texts, known = self._shared.texts(self._alive()), dict[str, Change]()
        for name in self._inputs:
            rows, schema = self._engine.shared_of(name), self._engine.schema_of(name)
            if schema is None:
                continue
            if rows is None or rows.outdated:
                return False
            known[name] = renumbered(schema, rows.present(), self._texts, texts)
        self._begin(start, texts, known)
        return True

    def _begin(self, start: Start, texts: Texts, known: dict[str, Change]) -> None:
        """Begin with the rows that are known of some inputs, and with those that others hold."""
        target, inputs = self._target, self._inputs
        self._lower, self._texts = start.lower, texts
        self._allowance, self._kept = target.allowance.apart(), {}
        self._engine = DataflowEngine(
            target.program, strategy=target.strategy, texts=self._texts, limits=target.limits,
            allowance=self._allowance, told=target.outputs, keeps_state=True, shares=True,
        )  # fmt: skip
        if not start.fresh:
            self._engine.restore(start.state, start.lower)
        for name, living in inputs.items():
            self._share(name, living)
            if name in known:
                self._engine.feed(name, known.pop(name))
                continue
            present = living.take_present()
            if present.num_rows:
                self._feed(name, living, present, living.lower - 1)
        self._first = {}
        if start.fresh:
            # Facts that are stated begin before all instants; for readers they begin with the view.
            # Values of lattices are read before the next step.
            told = self._engine.step(start.lower)
            self._first = {name: self._found(name, each) for name, each in told.items()}
        else:
            self._engine.step(start.lower)
            self._engine.tell_errors()
            self._engine.tell_state()
        self._shared.texts_begun(self._texts)
        self._meet()
        self._count()

    def _share(self, name: str, living: InputState) -> None:
        """Begin to keep an input, together with other views where these have its rows."""
        rows = self._engine.shared_of(name)
        living.keep_in(rows)
        schema = self._engine.schema_of(name)
        if rows is not None and schema is not None:
            self._kept[name] = living.shared.kept(self._texts, schema.kinds)
            self._kept[name].begin(rows, living.lower)
            rows.go_to(living.lower)

    def _meet(self) -> None:
        """Go on with the rows that other views keep, where these serve as well."""
        for name, kept in self._kept.items():
            rows = self._engine.shared_of(name)
            assert rows is not None
            kept.meet(rows)

    def _feed(self, name: str, living: InputState, rows: pa.Table, at: int | None = None) -> None:
        schema = self._engine.schema_of(name)
        if schema is not None:
            change = changes_of(rows, living.shape, schema, self._texts, at)
            self._engine.feed(name, change)

    def call_off(self) -> None:
        """Abandon the step under way."""
        self._allowance.call_off()

    def fewer(self) -> bool:
        """Shrink steps after one ran out of memory; whether that is possible."""
        smaller = self._changes_max > 1
        self._changes_max = max(1, self._changes_max // _FEWER)
        return smaller

    def step(self, lower: int, common: int, half_written: int | None) -> Step:
        """Take the changes of the inputs in one interval."""
        inputs = list(self._inputs.values())
        self._allowance.beside = sum(living.bytes_held for living in inputs)
        self._allowance.require(self._allowance.beside)
        upper = half_written or cut_step(inputs, lower, common, self._changes_max)
        for name, living in self._inputs.items():
            due = living.take_updates(upper)
            if due.num_rows:
                self._feed(name, living, due)
        told = self._engine.step(min(upper, END_WORD))
        self._changes_max = min(self._settings.step_changes_max, 2 * self._changes_max)
        self._meet()
        self._count()
        gone, come = self._engine.tell_state_late()
        return Step(upper, self._updates(told), partial(self._state, gone, come, upper))

    def _state(
        self, gone: list[StateRow], come: Callable[[], list[StateRow]], upper: int
    ) -> tuple[str, pa.Table]:
        """The updates of the state, made while the next step is evaluated."""
        table = update_table(moved_rows(gone, come(), upper - 1), STATE_SCHEMA)
        return self._target.state, table

    def _count(self) -> None:
        for name, living in self._inputs.items():
            living.kept = living.shared.alive = self._engine.rows(name)

    def _updates(self, told: Mapping[str, OutputChanges]) -> list[tuple[str, pa.Table]]:
        target, lower = self._target, self._lower
        updates: list[tuple[str, Updates]] = []
        failed: list[ErrorMove] = self._engine.tell_errors()
        for name, (collection, shape) in target.outputs.items():
            parts = []
            if name in told:
                parts.append(self._found(name, told[name]))
            if name in self._first:
                parts.append(self._first[name])
            for _, infinite in parts:
                failed += infinite
            updates.append(
                (
                    collection,
                    pa.concat_tables([t for t, _ in parts] or [update_table([], shape.schema)]),
                )
            )
        self._first = {}
        updates.append((target.errors, update_table(error_moves(failed, lower), ERROR_SCHEMA)))
        return updates

    def _found(self, name: str, told: OutputChanges) -> _Found:
        _, shape = self._target.outputs[name]
        told, infinite = without_endless(told) if self._endless else (told, [])
        return updates_of(told, shape, self._lower), infinite
