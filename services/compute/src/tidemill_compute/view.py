"""Keeps the outputs of one view at exactly what its program says of its inputs, instant by instant."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import pyarrow as pa

from tidemill.arrangement.updates import DIFF, TIME
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.evaluation import Engine, EngineState
from tidemill.datalog.evaluation.state import StateRow
from tidemill.datalog.incremental import follows
from tidemill.runtime.clock import Clock
from tidemill.shard import Collections
from tidemill.time import U64_MAX, Frontier, NotYet, frontier, sole_time
from tidemill_compute.appending import append_through
from tidemill_compute.following import Followed, Follower, changes_are_few
from tidemill_compute.holds import Holds
from tidemill_compute.living import LivingInput, cut_window
from tidemill_compute.record_rows import PredicateShape, record_of, row_of, table_of
from tidemill_compute.settings import ComputeSettings

STATE_SCHEMA = pa.schema(
    [pa.field("rule", pa.int64()), pa.field("kind", pa.string()), pa.field("solution", pa.string())]
)
ERROR_SCHEMA = pa.schema([pa.field("error", pa.string())])


@dataclass(frozen=True, slots=True)
class ViewTarget:
    """A view: its program, the collection of each input and output, its errors and its state."""

    name: str
    program: CheckedProgram
    inputs: Mapping[str, tuple[str, PredicateShape]]
    outputs: Mapping[str, tuple[str, PredicateShape]]
    errors: str
    state: str


@dataclass(slots=True)
class ViewProgress:
    """What the view has come to: for status and metrics."""

    lower: int = 0
    inputs: dict[str, int] = field(default_factory=dict)
    windows: int = 0
    changes: int = 0
    seconds: float = 0.0


class ViewDriver:
    """At each instant below upper, output = program(inputs), exactly.

    Work is cut into windows. Where a window holds many changes it is evaluated over all that is alive in
    [lower − 1, upper): what is present at lower − 1 was written by the window before, so differences
    are what begins or ends from `lower` on. Where it holds few, they alone are followed. The state,
    the outputs and the errors are written from the same lower to the same upper, the state first;
    a restart goes on from the least of them with the state as of then, and writes what is missing.
    """

    def __init__(
        self, target: ViewTarget, collections: Collections, clock: Clock, settings: ComputeSettings
    ) -> None:
        self._target = target
        self._collections = collections
        self._clock = clock
        self._settings = settings
        self._holds = Holds(collections, f"view:{target.name}")
        self._inputs = {
            predicate: LivingInput(predicate, tuple(shape.schema.names), record_of(shape))
            for predicate, (_, shape) in target.inputs.items()
        }
        self._engine = Engine(target.program)
        self._follows = settings.maintenance != "windows" and follows(target.program)
        self._follower: Follower | None = None
        self._state: EngineState | None = None
        self._state_rows: set[StateRow] = set()
        self._fresh = False
        self._state_upper = 0
        self.progress = ViewProgress()
        self.timed: Callable[[float], None] = lambda seconds: None
        """Told how long each window took, until it was durable."""

    @property
    def followed(self) -> bool:
        """Whether the view is followed by its changes now, not evaluated in windows."""
        return self._follower is not None

    async def hold_inputs(self) -> Frontier:
        """Hold the history of the inputs, now and over restarts; where all of them can be read.

        Comes before the outputs are created, so that a crash in between loses nothing.
        """
        begin = frontier(0)
        for collection in self._read()[:-1]:
            held = await self._holds.take(collection)
            begin = held if begin.precedes(held) else begin
        return begin

    async def prepare(self) -> None:
        """Hold the inputs, and the state of which a restart needs the last version."""
        await self.hold_inputs()
        await self._holds.take(self._target.state)

    async def maintain_forever(self) -> None:
        """Follow the inputs until cancelled, or until all of them are closed."""
        await self.prepare()
        await self._resume()
        held_at = self._clock.monotonic_s()
        while self.progress.lower < U64_MAX:
            common = await self._definite()
            while self.progress.lower < common:
                await self._step(common)
            if self._clock.monotonic_s() - held_at >= self._settings.hold_interval_s:
                held_at = self._clock.monotonic_s()
                await self._move_holds()

    def _read(self) -> list[str]:
        inputs = {collection for collection, _ in self._target.inputs.values()}
        return [*sorted(inputs), self._target.state]

    def _written(self) -> list[str]:
        outputs = [collection for collection, _ in self._target.outputs.values()]
        return [self._target.state, *outputs, self._target.errors]

    async def _resume(self) -> None:
        """Go back to the least upper of what is written, with inputs and state just before it.

        A view that has written nothing begins at the instant at which it was created, with what its
        inputs hold there.
        """
        uppers = [(await self._collections.status(c)).upper for c in self._written()]
        lower = min(sole_time(upper) for upper in uppers)
        # The hold on the state moves only behind a window that is complete.
        self._fresh = await self._holds.take(self._target.state) == frontier(lower)
        self.progress.lower, self._state, self._follower = lower, None, None
        self._state_upper = sole_time(uppers[0])
        for predicate, living in self._inputs.items():
            collection, _ = self._target.inputs[predicate]
            if lower == 0:
                continue
            at = lower if self._fresh else lower - 1
            await self._wait(collection, at)
            present = await self._holds.snapshot(collection, at)
            await asyncio.to_thread(living.restart, present, at + 1)
        if not self._fresh:
            rows = await self._holds.snapshot(self._target.state, lower - 1)
            columns = (rows[name].to_pylist() for name in STATE_SCHEMA.names)
            self._state = EngineState.from_rows(zip(*columns, strict=True))
        self._state_rows = set() if self._state is None else set(self._state.to_rows())

    async def _wait(self, collection: str, beyond: int) -> Frontier:
        """The upper of a collection once it is past `beyond`."""
        while True:
            try:
                return await self._collections.wait_for_upper(
                    collection, beyond, self._settings.poll_timeout_s
                )
            except NotYet:
                continue

    async def _definite(self) -> int:
        """Wait until every input is definite past what is written; the least of their uppers.

        Only inputs that hold the view back are read; the others wait for their turn in the store.
        """
        if not self._inputs:
            await self._clock.sleep(self._settings.table_interval_ms / 1000)
            return self._clock.now_ms()
        for predicate, living in self._inputs.items():
            collection, _ = self._target.inputs[predicate]
            while living.upper <= self.progress.lower:
                upper = await self._wait(collection, self.progress.lower)
                until = U64_MAX if upper.empty else sole_time(upper)
                living.extend(await self._holds.changes(collection, living.upper, until), until)
            self.progress.inputs[predicate] = living.upper
        return min(living.upper for living in self._inputs.values())

    async def _step(self, common: int) -> None:
        """Evaluate one window and write what it gives."""
        inputs, lower = list(self._inputs.values()), self.progress.lower
        upper = cut_window(inputs, lower, common, self._settings.window_changes_max)
        if lower < self._state_upper:
            # A window that was half written is written again as it was: the state is one of its end.
            upper = self._state_upper
        began_at = self._clock.monotonic_s()
        updates = await asyncio.to_thread(self._evaluate, lower, upper)
        # IMPORTANT: the state first: a restart takes it as of what the least output has.
        for collection, table in updates:
            await append_through(self._collections, collection, table, upper, self._target.name)
        self._fresh = False
        self.progress.lower = upper
        self.progress.windows += 1
        seconds = self._clock.monotonic_s() - began_at
        self.progress.seconds += seconds
        self.timed(seconds)

    def _evaluate(self, lower: int, upper: int) -> list[tuple[str, pa.Table]]:
        """The updates from `lower` on, state first."""
        inputs = list(self._inputs.values())
        if self._fresh or not self._follows:
            few = False
        else:
            following = self._follower is not None
            few = self._settings.maintenance == "changes" or changes_are_few(
                inputs, upper, following
            )
        if few:
            if self._follower is None:
                self._follower = Follower(self._target.program, inputs, lower, self._state)
            updates = self._followed(self._follower.step(upper), upper)
        else:
            if self._follower is not None:
                self._state, self._follower = self._follower.state(), None
            updates = self._window(lower, upper)
        self.progress.changes += sum(table.num_rows for _, table in updates)
        return updates

    def _followed(self, followed: Followed, upper: int) -> list[tuple[str, pa.Table]]:
        """What the changes of the inputs have changed, as updates."""
        gone, come = followed.state_gone, followed.state_come
        self._state_rows.difference_update(gone)
        self._state_rows.update(come)
        rows = [(row, upper - 1, -1) for row in gone] + [(row, upper - 1, 1) for row in come]
        updates = [(self._target.state, update_table(rows, STATE_SCHEMA))]
        facts: dict[str, list[Change]] = {name: [] for name in self._target.outputs}
        writers = {name: row_of(shape) for name, (_, shape) in self._target.outputs.items()}
        for change in followed.changes.facts:
            name = change.record.predicate
            if name in facts:
                facts[name].append((writers[name](change.record), int(change.at), change.diff))
        for name, (collection, shape) in self._target.outputs.items():
            updates.append((collection, update_table(facts[name], shape.schema)))
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
        updates = [(self._target.state, self._state_updates(evaluation.state, upper - 1))]
        for predicate, (collection, shape) in self._target.outputs.items():
            row = row_of(shape)
            stretches = ((row(p.record), p.start, p.end) for p in evaluation.presences[predicate])
            changes = differences(stretches, seen, lower, upper)
            updates.append((collection, update_table(changes, shape.schema)))
        failed = (((e.text,), e.start, e.end) for e in evaluation.errors)
        errors = differences(failed, seen, lower, upper)
        updates.append((self._target.errors, update_table(errors, ERROR_SCHEMA)))
        return updates

    def _state_updates(self, state: EngineState, time: int) -> pa.Table:
        """What changed in the state, at the last instant of the window."""
        before, after = self._state_rows, set(state.to_rows())
        self._state_rows = after
        changes = [(row, time, -1) for row in before - after]
        changes += [(row, time, 1) for row in after - before]
        return update_table(changes, STATE_SCHEMA)

    async def _move_holds(self) -> None:
        """Let go of input history that neither a restart nor a reader of the outputs can ask for."""
        needed = max(0, self.progress.lower - 1)
        for collection in self._written()[1:]:
            since = (await self._collections.status(collection)).since
            needed = min(needed, needed if since.empty else sole_time(since))
        for collection in self._read()[:-1]:
            await self._holds.downgrade(collection, frontier(needed))
        state = frontier(max(0, self.progress.lower - 1))
        await self._holds.downgrade(self._target.state, state)


Row: TypeAlias = "tuple[object, ...]"
Stretch: TypeAlias = "tuple[Row, float, float]"
Change: TypeAlias = "tuple[Row, int, int]"


def differences(stretches: Iterable[Stretch], seen: int, lower: int, upper: int) -> list[Change]:
    """What begins or ends at instants in [lower, upper): (row, time, ±1).

    What is present at an instant before `lower` that was seen was written then, and does not begin
    again.
    """
    changes: list[Change] = []
    for row, start, end in stretches:
        if start >= lower or seen == lower:
            changes.append((row, max(lower, int(max(start, 0))), 1))
        if end < upper:
            changes.append((row, int(end), -1))
    return changes


def update_table(changes: Sequence[Change], schema: pa.Schema) -> pa.Table:
    """Changes as updates of a collection."""
    rows = table_of([row for row, _, _ in changes], schema)
    times = pa.array([time for _, time, _ in changes], pa.uint64())
    diffs = pa.array([diff for _, _, diff in changes], pa.int64())
    return rows.append_column(TIME, times).append_column(DIFF, diffs)
