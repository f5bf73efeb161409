"""Keeps the outputs of one view equal to its program over its inputs at each instant."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from typing import TypeAlias, TypeVar

import pyarrow as pa

from tidemill.arrangement.looks import looking
from tidemill.catalog.schemas import STATE_SCHEMA
from tidemill.datalog.logical.plan import logical_plan
from tidemill.datalog.logical.scans import Scan
from tidemill.datalog.pushdown import Reading
from tidemill.datalog.state import StateRow
from tidemill.errors import Exhausted, NotYet, Unavailable
from tidemill.rpc.turns import until_ended
from tidemill.runtime.clock import Clock
from tidemill.runtime.logs import get_logger
from tidemill.shard import Collections
from tidemill.time import U64_MAX, Frontier, frontier, sole_time
from tidemill_compute.holds import Holds
from tidemill_compute.resting import Rest
from tidemill_compute.settings import ComputeSettings
from tidemill_compute.views.bulk import BulkHydrate, History
from tidemill_compute.views.engines import Engines
from tidemill_compute.views.input_rows import Row, rows_of
from tidemill_compute.views.input_state import InputState, no_rows
from tidemill_compute.views.ranged import rows_of_range
from tidemill_compute.views.readings import MOVED_MAX, all_of, is_near, reading_for
from tidemill_compute.views.shared_inputs import SharedInputs
from tidemill_compute.views.ticked import TickedMaintainer
from tidemill_compute.views.view_target import ViewTarget
from tidemill_compute.views.view_updates import Maintainer, Start, Step, ViewProgress
from tidemill_compute.views.writing import RangeWriting, Writing

log = get_logger("views")
T = TypeVar("T")
Read: TypeAlias = "Callable[..., Awaitable[pa.Table]]"


class ViewDriver:
    """At each instant below upper, output = program(inputs), exactly.

    Work is cut into steps. The state, the outputs and the errors are written from the same lower to
    the same upper. A small step is one transaction where the store has such, else the state comes
    first. A restart goes on from the least of them with the state as of then, and writes the
    missing parts. In a backlog a step is evaluated while the one before it is written; at most one
    of them is half written.
    """

    def __init__(
        self,
        target: ViewTarget,
        collections: Collections,
        clock: Clock,
        settings: ComputeSettings,
        shared: SharedInputs | None = None,
    ) -> None:
        self._target = target
        self._collections = collections
        self._clock = clock
        self._settings = settings
        self._written_by = (Writing if target.part is None else RangeWriting)(target, collections)
        self._shared = shared or SharedInputs()
        self._turn = self._shared.turn_of_steps(clock)
        self._holds = Holds(collections, f"view:{target.name}")
        self._inputs = {
            predicate: InputState(replace(shape, predicate=predicate))
            for predicate, (_, shape) in target.inputs.items()
        }
        self._maintainer: Maintainer
        self._local: Maintainer | None = None
        self.engines: Engines | None = None
        """Chooses the engine; without it the view is kept in this process."""
        self._call_off: Callable[[], None] = lambda: None
        self._scans: Mapping[str, Scan] = {}
        self._readings: dict[str, Reading] = {}
        self._apart: dict[str, Callable[[], bool]] = {}
        """Inputs that it reads for itself until others read all of them, and whether they do."""
        self._widened = self._narrow = False
        """Whether it reads more than it needs as others do, and whether it has no room for that."""
        self._state_upper = 0
        self._taken = 0
        """The upper of the last step that was evaluated."""
        self._writing: asyncio.Task[bool] | None = None
        """The write of the last step, while the next one is evaluated."""
        self._fresh = self._begun = self._last = self._waits = False
        self.progress = ViewProgress()
        self.bulk: BulkHydrate | None = None
        """Evaluates a history of `spark_rows` and more; None is this process."""
        self.timed: Callable[[float], None] = lambda seconds: None
        """Told how long each step took, until it was durable."""
        self.rest: Rest | None = None
        """The rest of the outputs while all inputs rest; None writes them at each instant."""

    @property
    def shared_with(self) -> dict[str, int]:
        """Of each input, how many other views of this process read it together with this one."""
        return {name: max(0, living.shared.readers - 1) for name, living in self._inputs.items()}

    async def hold_inputs(self) -> Frontier:
        """Hold the history of the inputs, now and over restarts; where the view can begin.

        Comes before the outputs are created, so that a crash in between loses nothing.
        """
        begin = frontier(0) if self._target.begin is None else self._target.begin
        for collection in self._input_collections():
            held = await self._holds.take(collection)
            begin = held if begin.precedes(held) else begin
        return begin

    async def prepare(self) -> None:
        """Hold the inputs, and of what it writes that of which a restart needs the last version."""
        await self.hold_inputs()
        for collection in self._reread():
            await self._holds.take(collection)

    async def maintain_forever(self) -> None:
        """Follow the inputs until cancelled, until all are closed, or until `finish`."""
        try:
            while not await self._has_ended():
                log.warning("begins again, reading what it needs", view=self._target.name)
        finally:
            if self._writing is not None:
                self._writing.cancel()
                await asyncio.gather(self._writing, return_exceptions=True)
                self._writing = None
            for living in self._inputs.values():
                living.let_go()

    async def _has_ended(self) -> bool:
        """Whether nothing is left to follow; false if there was no room for what others read."""
        try:
            await self._maintain()
        except Exhausted:
            if not self._narrows():
                raise
            return False
        return True

    async def _maintain(self) -> None:
        await self.prepare()
        await self._resume()
        if self._fresh and self.bulk is not None and await self._hydrate(self.bulk):
            await self._resume()
        held_at = self._clock.monotonic_s()
        while self.progress.lower < U64_MAX and not self._finished():
            if self._writing is not None and not self._is_behind(self._taken):
                if not await self._settle():
                    await self._resume()
                continue  # it may have been the last one
            self._waits = True
            if await self._rests_on():
                continue
            common = await self._definite()
            self._waits = False
            while self._taken < common and not self._finished():
                if not await self._step(common):
                    await self._resume()
                    break
            if self._clock.monotonic_s() - held_at >= self._settings.hold_interval_s:
                held_at = self._clock.monotonic_s()
                await self._move_holds()

    async def _rests_on(self) -> bool:
        """Whether the outputs went on at rest for a while, and nothing is to be evaluated."""
        if self.rest is None or self._writing is not None:
            return False
        upper = await self.rest.wait_for_news(self._settings.hold_interval_s)
        if upper is None or self._last or self._maintainer.outdated or self._hands_over():
            return False
        self.progress.lower = max(self.progress.lower, sole_time(upper))
        return True

    def _is_behind(self, reached: int) -> bool:
        """Whether every input is known to be definite past an instant."""
        past = self._collections.known_past
        return reached < U64_MAX and all(
            living.upper > reached or past(self._target.inputs[predicate][0], reached)
            for predicate, living in self._inputs.items()
        )

    @property
    def rests(self) -> bool:
        """Whether all that it writes has one upper, and nothing is being written."""
        return self._waits and self._has_one_upper()

    def _has_one_upper(self) -> bool:
        return self._writing is None and self.progress.lower >= self._state_upper

    def finish(self) -> None:
        """End `maintain_forever` once all its outputs have one upper."""
        self._last = True

    def _finished(self) -> bool:
        return self._last and self._has_one_upper()

    async def release(self) -> None:
        """Give up all holds: nobody will maintain this again."""
        await self.prepare()
        await self._holds.release()

    def _input_collections(self) -> list[str]:
        return sorted({collection for collection, _ in self._target.inputs.values()})

    def _reread(self) -> list[str]:
        """The collections that a restart reads again: the state, and with ticks the outputs."""
        return [self._target.state] if self._target.ticks is None else self._target.written

    def _read_before(self) -> list[str]:
        """The outputs that windows read as they are just before them."""
        engines = self.engines
        return [] if engines is None or engines.running == "local" else engines.read_again

    async def _resume(self) -> None:
        """Go back to the least upper of what is written, with inputs and state just before it.

        A view that has written nothing begins at the instant at which it was created, with what its
        inputs hold there.
        """
        await self._settle()
        uppers = await self._written_by.uppers()
        lower = min(sole_time(upper) for upper in uppers)
        # The hold on the state moves only behind a window that is complete.
        fresh = await self._holds.take(self._target.state) == frontier(lower)
        self.progress.lower = self._taken = lower
        self._fresh, self._begun = fresh and len(set(uppers)) == 1, not fresh
        self._state_upper = sole_time(uppers[0])
        if lower == U64_MAX:
            return  # it is complete: nothing is evaluated any more, and no instant is before it
        await self._choose(fresh)
        self._scans = (await self._compute(logical_plan, self._target.program)).scans
        for predicate, living in self._inputs.items():
            collection, shape = self._target.inputs[predicate]
            await self._share(predicate)
            if lower == 0 or not self._maintainer.reads_present:
                living.restart(no_rows(shape), lower)
                continue
            at = lower if fresh else lower - 1
            await self._wait(collection, at)
            told, reading = self._target.allowance.apart().take, self._readings[predicate]
            read = partial(self._holds.snapshot, collection, reading=reading, told=told)
            known = await living.shared.present(living, at, self._of_range(living, read))
            living.restart(known, at + 1)
        state = frozenset() if fresh else await self._state_before(lower)
        contents: dict[str, list[Row]] = {}
        if not fresh:
            for collection in self._reread()[1:]:
                present = await self._holds.snapshot(collection, lower - 1)
                names = (await self._collections.description(collection)).schema.names
                contents[collection] = rows_of(present, names)
        start = Start(lower, fresh, state, contents)
        try:
            await self._compute(self._maintainer.begin, start, self._inputs)
        except Exhausted as error:
            if fresh or self._widened or not self._goes_over(error, begins=True):
                raise
            await self._resume()
            return
        if self.engines is not None:
            self.engines.begun(self._maintainer.held)

    async def _state_before(self, lower: int) -> frozenset[StateRow]:
        """The state of just before an instant."""
        rows = await self._holds.snapshot(self._target.state, lower - 1)
        return frozenset(rows_of(rows, STATE_SCHEMA.names))  # type: ignore[arg-type]

    async def _go_on(self) -> bool:
        """Whether the maintainer has begun again with rows that it has: no input is read again."""
        if not (self._begun and await self._settle() and self._has_one_upper()):
            return False
        start = Start(self._taken, False, await self._state_before(self._taken))
        try:
            return await self._compute(self._maintainer.go_on, start)
        except Exhausted:
            return False  # whoever reads the inputs again finds out whether there is room

    async def _choose(self, fresh: bool) -> None:
        """Choose the engine that keeps the view from now on."""
        engines = self.engines
        if engines is not None:
            history = await self._history()
            engines.rule.estimate(0 if fresh else history.rows)
            if not engines.planned:
                await self._compute(engines.plan, history)
            if engines.choose(fresh=fresh) == "spark":
                for collection in engines.read_again:
                    await self._holds.take(collection)
                self._local, self._maintainer = None, engines.maintainer(self._collections)
                self._call_off = self._maintainer.call_off
                return
        for collection in set(self._target.written) - set(self._reread()):
            await self._holds.give_up(collection)  # windows may have held it
        if self._local is None:
            chosen = (self._target, self._settings, self._shared)
            self._local = await self._compute(maintainer_of, *chosen)
        self._maintainer = self._local
        self._call_off = self._maintainer.call_off

    async def _history(self) -> History:
        """The history of the inputs that is definite now."""
        inputs = {}
        upper = U64_MAX
        for collection in self._input_collections():
            state = await self._collections.state(collection)
            upper = min(upper, U64_MAX if state.upper.empty else sole_time(state.upper))
            inputs[collection] = (state.description, state.parts())
        written = {c: await self._collections.description(c) for c in self._target.written}
        return History(self._target, self._settings, self.progress.lower, upper, inputs, written)

    async def _hydrate(self, bulk: BulkHydrate) -> bool:
        """Whether somebody else has evaluated the history that is definite now."""
        target, settings, history = self._target, self._settings, await self._history()
        on_spark = self.engines is not None and self.engines.wanted == "spark"
        least = min(settings.spark_rows, settings.step_changes_max + 1)
        least = least if on_spark else settings.spark_rows  # what one step takes is evaluated here
        if target.ticks is not None or history.rows < least:
            return False
        if not history.lower < history.upper < U64_MAX:
            return False
        try:
            await bulk.hydrate(history)
        except Exhausted:
            raise  # what is too much for a job is too much for this process
        except Unavailable as error:
            log.warning("the history is evaluated here", view=target.name, error=str(error))
            return False
        return True

    async def _share(self, predicate: str) -> None:
        """Read the rows and columns of an input that can matter, if no count may be negative."""
        collection, shape = self._target.inputs[predicate]
        scan = self._scans.get(predicate)
        state = await self._collections.state(collection)
        if state.description.allow_negative or not self._maintainer.reads_present:
            scan = None  # windows find rows as they are stored
        stored, every = self._maintainer.reads_max is not None, all_of(shape)
        self._apart.pop(predicate, None)
        alone = self._narrow or self._target.part is not None  # nobody else reads rows of a range
        if not alone and is_near(scan, shape, state.parts()):
            is_read = partial(self._shared.is_read, collection, shape, every, stored)
            if is_read():
                scan, self._widened = every, True
            else:
                self._apart[predicate] = is_read
        self._readings[predicate] = reading_for(scan, shape)
        self._inputs[predicate].stored = stored
        if self._target.part is None:
            self._inputs[predicate].share(self._shared.input(collection, shape, scan, stored))

    def _narrows(self) -> bool:
        """Whether it begins again with what it needs of inputs of which it had read all."""
        narrows, self._widened = self._widened, False
        self._narrow |= narrows
        return narrows

    def _of_range(self, living: InputState, read: Read) -> Read:
        """The same, of the rows of the range that is kept."""
        part = self._target.part
        if part is None:
            return read

        async def rows(*given: int) -> pa.Table:
            return await self._compute(rows_of_range, part, living.shape, await read(*given))

        return rows

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
            while living.upper <= self._taken:
                upper = await self._wait(collection, self._taken)
                until = U64_MAX if upper.empty else sole_time(upper)
                most = self._maintainer.reads_max
                if most is not None:
                    part = self._target.part
                    bounded = await self._collections.upper_of_rows(
                        collection,
                        living.upper,
                        until,
                        most if part is None else most * part.ranges,
                    )
                    # A step that was half written is read whole.
                    until = max(bounded, min(until, self._state_upper))
                told, reading = self._target.allowance.apart().take, self._readings[predicate]
                read = partial(
                    self._holds.changes, collection,
                    reading=reading, told=told, added_up=most is None,
                )  # fmt: skip
                await living.shared.read(living, until, self._of_range(living, read))
            self.progress.inputs[predicate] = living.upper
        return min(living.upper for living in self._inputs.values())

    async def _step(self, common: int) -> bool:
        """Evaluate one step and begin to write what it gives.

        False if the maintainer has to begin again. The step before it is written on return. So is
        this one where the next one reads what is written, or where none is to come. So is the first
        one, after which another engine may go on.
        """
        lower = self._taken
        half_written = self._state_upper if lower < self._state_upper else None
        began_at = self._clock.monotonic_s()
        if self._hands_over() or self._joins():
            return False
        if self._maintainer.outdated and not await self._go_on():
            return False
        try:
            step, taken = await self._take_in(lower, common, half_written)
        except Exhausted as error:
            await self._settle()
            if not (self._narrows() or self._maintainer.fewer()):
                # A view that has written nothing would begin again here.
                if self._begun and self._goes_over(error, begins=False):
                    return False
                raise
            log.warning("a step begins again, with less", view=self._target.name, error=str(error))
            return False
        if not await self._settle():
            return False
        self._taken, held = step.upper, self._maintainer.held
        self._writing = asyncio.create_task(self._write(step, lower, taken, began_at, held))
        overlaps = self._maintainer.reads_present and self._begun and not self._last
        return overlaps or await self._settle()

    async def _settle(self) -> bool:
        """Return once the last step is written; false if the maintainer has to begin again."""
        if self._writing is None:
            return True
        try:
            return await self._writing
        finally:
            self._writing = None

    async def _write(
        self, step: Step, lower: int, taken: int, began_at: float, held: tuple[int, int]
    ) -> bool:
        """Write what a step gave; false if the maintainer has to begin again."""
        # IMPORTANT: the state first, or all at once: a restart takes it as of what the least output
        # has.
        updates = step.made() if step.state is None else await self._compute(step.made)
        alone = True
        if not await self._written_by.append_all(updates, lower, step.upper):
            state, *rest = updates
            fits = await self._written_by.append_state(state, lower, step.upper)
            if fits is None:
                return False
            alone = fits
            appends = (self._written_by.append(update, step.upper) for update in rest)
            for failed in await asyncio.gather(*appends, return_exceptions=True):
                if failed is not None:
                    raise failed
        self.progress.lower, self._begun = step.upper, True
        self.progress.taken += taken
        self.progress.steps += 1
        self.progress.changes += sum(table.num_rows for _, table in updates)
        seconds = self._clock.monotonic_s() - began_at
        self.progress.seconds += seconds
        self.progress.held = held
        self.timed(seconds)
        if self.engines is not None:
            behind = self.count_changes(self.progress.lower, U64_MAX)
            self.engines.stepped(self._clock.monotonic_s(), seconds, behind, held)
        if self.rest is not None:
            changed = any(table.num_rows for _, table in updates)
            await self.rest.follow(frontier(step.upper), changed)
        return alone

    def _joins(self) -> bool:
        """Whether to begin again with what others read: little is read anew for it."""
        return any(
            self._inputs[each].alive <= MOVED_MAX and joins() for each, joins in self._apart.items()
        )

    def _hands_over(self) -> bool:
        """Whether another engine is to go on from here, where everything has one upper."""
        engines = self.engines
        return engines is not None and self._begun and engines.wanted != engines.running

    def _goes_over(self, error: Exhausted, *, begins: bool) -> bool:
        """Whether another engine goes on where this process has no room."""
        return self.engines is not None and self.engines.gave_up(error, begins=begins)

    def may_rest(self) -> None:
        """From now on the outputs follow their inputs while these rest, if the program allows it.

        IMPORTANT: outputs at rest are moved by nobody who evaluates the program, so it has to be
        timeless.
        """
        program, inputs = self._target.program, self._input_collections()
        if program.timeless and inputs:
            self.rest = Rest(self._target.state, self._target.written, inputs, self._collections)

    async def _compute(self, work: Callable[..., T], *given: object) -> T:
        """The result of `work` on a thread of the views; cancelled, it has ended all the same."""
        done = partial(copy_context().run, looking, partial(work, *given))
        working = asyncio.get_running_loop().run_in_executor(self._shared.threads, done)
        return await until_ended(working, lambda: self._call_off())

    async def _take_in(self, lower: int, common: int, half_written: int | None) -> tuple[Step, int]:
        """A step, and about how many changes of the inputs it took in."""
        stages = self._collections.stages
        # NB: in a backlog the state is made while the next step is evaluated; else at once.
        with stages.timed("operators", 0):
            step = await self._compute(
                self._evaluate, lower, common, half_written, not self._is_behind(common)
            )
        taken = self.count_changes(lower, step.upper)
        stages.add("operators", 0.0, taken)
        return step, taken

    def count_changes(self, lower: int, upper: int) -> int:
        """About the number of changes of the inputs between two instants. Cost: no read."""
        count = self._collections.count_updates
        return sum(count(each, lower, upper) for each in self._input_collections())

    def _evaluate(self, lower: int, common: int, half_written: int | None, whole: bool) -> Step:
        """A step; `whole` with the updates of its state."""
        try:
            with self._turn:
                step = self._maintainer.step(lower, common, half_written)
                return Step(step.upper, step.made()) if whole else step
        except MemoryError as error:
            raise Exhausted(
                f"a step of view {self._target.name} was given up: the machine has no memory left",
                reason="memory",
            ) from error

    async def _move_holds(self) -> None:
        """Downgrade the holds to the history of a restart and of readers of the outputs."""
        last = max(0, self.progress.lower - 1)  # what is being written is not complete yet
        for collection in (*self._reread(), *self._read_before()):
            await self._holds.downgrade(collection, frontier(last))
        needed = last
        for collection in self._target.written[1:]:
            since = (await self._collections.status(collection)).since
            needed = min(needed, needed if since.empty else sole_time(since))
        for collection in self._input_collections():
            await self._holds.downgrade(collection, frontier(needed))


def maintainer_of(
    target: ViewTarget, settings: ComputeSettings, shared: SharedInputs
) -> Maintainer:
    """The maintainer of a view, by its ticks. Cost: the import of loops."""
    if target.ticks is not None:
        return TickedMaintainer(target, settings, shared)
    from tidemill_compute.views.dataflow import DataflowMaintainer  # loads loops

    return DataflowMaintainer(target, settings, shared)
