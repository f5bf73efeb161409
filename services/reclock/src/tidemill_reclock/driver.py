"""Writes one source's rows and dead letters, each row alone at the time its binding gives it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import pyarrow as pa

from tidemill.arrangement.updates import (
    DIFF,
    TIME,
    between,
    concatenate,
    empty_updates,
    stamp,
)
from tidemill.errors import BeforeSince, NotYet
from tidemill.reclock import (
    Binding,
    KeyedRows,
    LiveReclock,
    RemapTrace,
    bindings_of_rows,
    letters_of,
    prepare_mapping,
    resume_as_of,
    resume_points,
    resume_source,
    rows_of_bindings,
    source_upper,
)
from tidemill.runtime.clock import Clock
from tidemill.shard import Collections, ReadCapability, UpperMismatch
from tidemill.shard.offloading import compute_beside
from tidemill.shard.parts import span_of
from tidemill.time import (
    PARTITIONED,
    U64_MAX,
    Frontier,
    Partitions,
    frontier,
    partition_frontier,
    partition_offsets,
    sole_time,
)
from tidemill_reclock.bulk import Backlog
from tidemill_reclock.settings import ReclockSettings

REST_POLL_S = 2.0
"""Seconds between looks at whether a source still rests, if another process binds it."""


class Delivery(Protocol):
    """Delivery of ingest: rows and letters, and the delivered offset of each partition."""

    @property
    def rows(self) -> pa.Table:
        """Decoded rows with their partition and offset."""

    @property
    def letters(self) -> pa.Table:
        """Dead letters with their partition and offset."""

    @property
    def positions(self) -> Mapping[int, int]:
        """Partition → offset before which everything has been delivered."""


@dataclass(frozen=True, slots=True)
class ReclockTarget:
    """The collections of one source, made at `begins`.

    `rows` and `letters` are written, `remap` is read.
    """

    source: str
    remap: str
    rows: str
    letters: str
    row_schema: pa.Schema
    letter_schema: pa.Schema
    begins: int = 0


class _Output:
    """One collection that is written up to the reclocked frontier, from wherever it stands."""

    def __init__(self, collection: str, schema: pa.Schema, places: tuple[str, str]) -> None:
        self.collection = collection
        self.schema = schema
        self.upper: Frontier = frontier(0)
        self._places = places
        self._bound: list[tuple[pa.Table, int, int]] = []
        """Updates that are not written yet, with their least and their greatest time."""

    def restart(self, as_of: int) -> None:
        """Forget all rows and bindings; those to come are seen from `as_of`."""
        partition, offset = self._places
        self._bound = []
        self.operator = LiveReclock(
            self.schema, as_of, partition_column=partition, offset_column=offset
        )

    def step(
        self,
        rows: pa.Table | None,
        bindings: list[Binding[Partitions]],
        remap_upper: Frontier | None,
        source: pa.Table | None,
    ) -> Frontier:
        """Take everything in; the frontier up to which the output can be written now."""
        answer = self.operator.step(rows, bindings, remap_upper, source)
        if answer.table.num_rows:
            self._bound.append((answer.table, *span_of(answer.table.column(TIME).to_numpy())))
        return answer.frontier

    def due(self, reached: Frontier) -> pa.Table:
        """The updates from the output's upper to `reached`."""
        lower = 0 if self.upper.empty else sole_time(self.upper)
        upper = None if reached.empty else sole_time(reached)
        due = [
            between(table, lower, upper)
            for table, least, greatest in self._bound
            if greatest >= lower and (upper is None or least < upper)
        ]
        return concatenate([empty_updates(self.schema), *due])

    def forget_before(self, upper: Frontier) -> None:
        """Drop what is written: tables with nothing later."""
        self._bound = [
            held for held in self._bound if not upper.empty and held[2] >= sole_time(upper)
        ]


def _since(updates: pa.Table, upper: Frontier) -> pa.Table:
    """The updates at or beyond an upper that is not the end of time."""
    return between(updates, sole_time(upper), None)


class ReclockDriver:
    """Writes every row not beyond R(t) exactly once, at the least such t.

    The frontier of the outputs advances with the slower of the bindings and the rows delivered. The
    output is a function of the source and its bindings. The first writer of an interval has thus
    written the rows of any other one.
    """

    def __init__(
        self,
        target: ReclockTarget,
        collections: Collections,
        clock: Clock,
        settings: ReclockSettings,
        keyed: KeyedRows | None = None,
    ) -> None:
        """With `keyed` the rows delivered are changes, and become updates through it."""
        self._target = target
        self._keyed = keyed
        self._collections = collections
        self._clock = clock
        self._settings = settings
        self._rows = _Output(target.rows, target.row_schema, ("_partition", "_offset"))
        self._letters = _Output(target.letters, target.letter_schema, ("partition", "offset"))
        self._deliveries: list[Delivery] = []
        self._reached: dict[int, int] = {}
        """The offset up to which each partition has been delivered, by any reader."""
        self._bindings: list[Binding[Partitions]] = []
        self._remap_upper = frontier(0)
        self._bound: RemapTrace[Partitions] = RemapTrace(PARTITIONED, 0)
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._hold: ReadCapability | None = None
        self._prepared = False
        self.timed: Callable[[float], None] = lambda seconds: None
        """Told how long each append took, from the rows and bindings taken to durable updates."""
        self.broke: Callable[[int], None] = lambda count: None
        """Told of changes that broke off the history of their row."""

    @property
    def unbound(self) -> int:
        """Rows that wait for a binding."""
        return self._rows.operator.unbound

    @property
    def written(self) -> Frontier:
        """Frontier of both outputs and of the known bindings, with which they move at rest."""
        return self._rows.upper.meet(self._letters.upper).meet(self._remap_upper)

    def committed(self) -> dict[int, int]:
        """The offsets up to which everything is written: R just before what is written."""
        return partition_offsets(source_upper(self._bound, *self.written))

    async def resume(self) -> dict[int, int]:
        """The offsets to read from, per partition, for both outputs to miss nothing.

        The state from before is forgotten; deliveries have to start there.
        """
        uppers = {}
        for output in (self._rows, self._letters):
            output.upper = uppers[output.collection] = (
                await self._collections.status(output.collection)
            ).upper
        upper = self._remap_upper = (await self._collections.status(self._target.remap)).upper
        await self._hold_bindings()
        assert self._hold is not None
        # Bindings that are shared may begin before the source: all that is bound where it begins
        # appears there.
        as_of = max(
            sole_time(resume_as_of(uppers.values(), self._hold.frontier)), self._target.begins
        )
        self._refuse_forgotten(uppers.values(), as_of)
        bindings = await self._read_bindings(as_of, upper)
        self._bound = RemapTrace(PARTITIONED, as_of)
        self._bound.insert(bindings, upper)
        for output in (self._rows, self._letters):
            output.restart(as_of)
        self._deliveries, self._bindings = [], bindings
        self._reached = {}
        points = resume_points(self._bound, uppers)
        await self._restore_keyed()
        return partition_offsets(resume_source(points.values(), PARTITIONED))

    def _refuse_forgotten(self, uppers: Iterable[Frontier], as_of: int) -> None:
        """Raises: BeforeSince if bindings are forgotten by which rows are yet to be written."""
        written = min(sole_time(upper) for upper in uppers if not upper.empty)
        if as_of > max(written - 1, self._target.begins):
            raise BeforeSince(
                f"{self._target.source} is written up to {written}, and {self._target.remap} says what was "
                f"bound from {as_of} on: delete the source and apply it again",
                requested=max(written - 1, self._target.begins), since=frontier(as_of),
            )  # fmt: skip

    def backlog(self, starts: Mapping[int, int]) -> Backlog | None:
        """The bound and unwritten part of the source, if there is any."""
        stops = partition_offsets(self._bound.current)
        lower, upper = sole_time(self.written), sole_time(self._remap_upper)
        if lower >= upper or all(starts.get(p, 0) >= stop for p, stop in stops.items()):
            return None
        target = self._target
        rows = rows_of_bindings(self._bindings)
        return Backlog(
            target.source,
            target.remap,
            target.rows,
            target.letters,
            starts,
            stops,
            rows,
            lower,
            upper,
        )

    async def take(self, delivery: Delivery) -> None:
        """Take rows in the order of their partitions; returns when there is room for more.

        Several readers may deliver at once, each its own partitions: one that is ahead of the
        bindings waits for itself.
        """
        self._deliveries.append(delivery)
        self._reached.update(delivery.positions)
        self._changed.set()
        while self._crowded(delivery.positions):
            self._room.clear()
            await self._room.wait()

    async def write_forever(self) -> None:
        """Write what is bound as it comes, until cancelled or the bindings end."""
        async with asyncio.TaskGroup() as tasks:
            following = tasks.create_task(self._follow_bindings())
            held_at = self._clock.monotonic_s()
            while not self.written.empty:
                await self._changed.wait()
                self._changed.clear()
                await self._step()
                if self._clock.monotonic_s() - held_at >= self._settings.hold_interval_s:
                    held_at = self._clock.monotonic_s()
                    await self._hold_bindings()
            following.cancel()

    def _crowded(self, reached: Mapping[int, int]) -> bool:
        """Whether rows pile up that no step has taken yet, or that no binding covers yet, and
        whoever has come so far adds to these.
        """
        waiting = sum(delivery.rows.num_rows for delivery in self._deliveries)
        if waiting >= self._settings.unbound_rows_max:
            return True  # the next step takes all of them
        if waiting + self.unbound < self._settings.unbound_rows_max:
            return False
        bound = partition_offsets(self._bound.current)
        return all(at >= bound.get(partition, 0) for partition, at in reached.items())

    async def _follow_bindings(self) -> None:
        """Read back each binding once it is durable; nothing else makes rows visible."""
        upper = self._remap_upper
        while not upper.empty:
            # NB: no binding is made of a source at rest, and what it has is written: nothing is to
            # be done.
            if not await self._collections.rest_over(self._target.remap, REST_POLL_S):
                continue
            lower = sole_time(upper)
            try:
                upper = await self._collections.wait_for_upper(
                    self._target.remap, lower, self._settings.poll_timeout_s
                )
            except NotYet:
                continue
            assert self._hold is not None
            until = U64_MAX if upper.empty else sole_time(upper)
            rows = await self._collections.changes(self._hold, lower, until)
            bindings = bindings_of_rows(rows)
            self._bound.insert(bindings, upper)
            self._bindings += bindings
            self._remap_upper = upper
            self._changed.set()

    async def _step(self) -> None:
        """Map what came since the last step, and write what is complete."""
        began_s = self._clock.monotonic_s()
        deliveries, self._deliveries = self._deliveries, []
        self._room.set()
        # Bindings and their upper are taken together: more may arrive while an output is written.
        bindings, self._bindings = self._bindings, []
        remap_upper = self._remap_upper
        source = partition_frontier(self._reached) if deliveries else None
        outputs = (
            (self._rows, [delivery.rows for delivery in deliveries]),
            (self._letters, [delivery.letters for delivery in deliveries]),
        )
        count = sum(table.num_rows for _, tables in outputs for table in tables)
        if count and not self._prepared:
            await asyncio.to_thread(prepare_mapping)
            self._prepared = True
        with self._collections.stages.timed("bind", count):
            reached = await compute_beside(
                count + self.unbound,
                lambda: [
                    output.step(
                        pa.concat_tables(tables) if tables else None, bindings, remap_upper, source
                    )
                    for output, tables in outputs
                ],
            )
        if self._keyed is not None:
            if await self._write_keyed(self._keyed, reached[0].meet(reached[1])):
                self.timed(self._clock.monotonic_s() - began_s)
        else:
            for (output, _), upto in zip(outputs, reached, strict=True):
                if await self._write(output, upto):
                    self.timed(self._clock.monotonic_s() - began_s)
        self._room.set()

    async def _write(self, output: _Output, reached: Frontier) -> bool:
        """Bring the output to `reached`; if another writer was there first, from where it left it.

        Whether anything was left to write.
        """
        wrote = False
        while not reached.precedes(output.upper):
            await self._append(output, output.due(reached), reached)
            wrote = True
        output.forget_before(output.upper)
        return wrote

    async def _append(self, output: _Output, updates: pa.Table, reached: Frontier) -> bool:
        """Whether the output went from its upper to `reached` with `updates`; it knows its upper
        then.
        """
        outcome = await self._collections.compare_and_append(
            output.collection, output.upper, reached, updates, writer=self._target.source
        )
        lost = isinstance(outcome, UpperMismatch)
        output.upper = outcome.current if isinstance(outcome, UpperMismatch) else outcome.upper
        return not lost

    async def _write_keyed(self, keyed: KeyedRows, reached: Frontier) -> bool:
        """Append rows and dead letters of the keyed source up to `reached`.

        IMPORTANT: the letters before the rows. Dead letters follow from the rows held where the
        interval begins. With the rows written last, the rows of that place are still the latest
        after a crash.
        """
        rows, letters = self._rows, self._letters
        wrote = False
        while await self._is_due(rows, reached):
            due = rows.due(reached)
            applied = await compute_beside(due.num_rows, partial(keyed.apply, due))
            self.broke(len(applied.broken))
            told = letters_of(applied.broken, self._target.letter_schema)
            while not reached.precedes(letters.upper):
                # The part of both that is not written yet, whoever wrote what is.
                missing = concatenate([letters.due(reached), _since(told, letters.upper)])
                await self._append(letters, missing, reached)
            wrote = True
            if not await self._append(rows, applied.updates, reached):
                await self._restore_keyed()
        for output in (rows, letters):
            output.forget_before(output.upper)
        return wrote

    async def _is_due(self, rows: _Output, reached: Frontier) -> bool:
        """Whether the rows are not at `reached`, from where they are now: at rest they get further
        without us.
        """
        if reached.precedes(rows.upper):
            return False
        upper = (await self._collections.status(rows.collection)).upper
        if upper != rows.upper:
            missed = rows.due(upper)
            rows.upper = upper
            if missed.num_rows:
                await self._restore_keyed()
        return not reached.precedes(upper)

    async def _restore_keyed(self) -> None:
        """Hold what the rows hold where they end."""
        upper = self._rows.upper
        if self._keyed is None or upper.empty:
            return
        collection, schema = self._target.rows, self._keyed.schema
        if sole_time(upper) <= self._target.begins:
            self._keyed.restore(schema.empty_table())
            return
        owner = f"reclock:{self._target.source}"
        reader, _ = await self._collections.acquire(collection, owner=owner)
        try:
            held = await self._collections.snapshot(reader, sole_time(upper) - 1)
        finally:
            await self._collections.drop(reader)
        self._keyed.restore(held)

    async def _hold_bindings(self) -> None:
        """Hold the bindings of every instant at which the rows can be read, and those that a
        restart would need.

        A restart needs them from just before what is written.
        """
        owner = f"reclock:{self._target.source}"
        before = max(0, sole_time(self.written) - 1)
        readable = (await self._collections.status(self._target.rows)).since
        needed = frontier(before).meet(readable)
        if self._hold is None:
            self._hold = await self._collections.read_hold(
                self._target.remap, at=needed, owner=owner, lease_ms=None
            )
            return
        self._bound.compact(frontier(before))
        if self._hold.frontier != needed and self._hold.frontier.precedes(needed):
            self._hold = await self._collections.downgrade(self._hold, needed)

    async def _read_bindings(self, as_of: int, upper: Frontier) -> list[Binding[Partitions]]:
        """All bindings before `upper`; those before `as_of` at it."""
        assert self._hold is not None
        content = await self._collections.snapshot(self._hold, as_of)
        rows = [stamp(content.drop_columns([DIFF]), as_of)]
        until = U64_MAX if upper.empty else sole_time(upper)
        if as_of + 1 < until:
            rows.append(await self._collections.changes(self._hold, as_of + 1, until))
        return bindings_of_rows(concatenate(rows))
