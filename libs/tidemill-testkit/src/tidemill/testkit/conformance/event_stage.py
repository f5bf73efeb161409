"""The arrivals of a case through the event stage of the compute service, over stores in memory.

Each entry of a case is a row of one source, at a system instant of its own. The stage writes the
map, the dead letters and the events; all that a case compares is read back from these collections.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from tidemill.arrangement.updates import DIFF, TIME, update_schema
from tidemill.catalog.schemas import EVENT_MAP_SCHEMA, event_schema
from tidemill.reclock import REMAP_SCHEMA, rows_of_bindings
from tidemill.runtime.clock import ManualClock
from tidemill.runtime.formats import LETTER_SCHEMA
from tidemill.shard import Collections, Description, MemoryBlob, MemoryConsensus
from tidemill.testkit.conformance.values import CaseError
from tidemill.time import U64_MAX, Partitions, frontier
from tidemill_compute.events.fold import EventPolicy
from tidemill_compute.events.history import EventTarget
from tidemill_compute.events.progress import STREAM, Policy
from tidemill_compute.events.rows import EventColumns
from tidemill_compute.events.stage import EventStage
from tidemill_compute.settings import ComputeSettings

_DATA = pa.schema([("entry", pa.string()), ("at", pa.int64()), ("until", pa.int64())])
_RAW = pa.schema(
    [*_DATA, ("_partition", pa.int64()), ("_offset", pa.uint64()), ("_heartbeat", pa.int64())]
)
_TARGET = EventTarget(
    "s", "s/raw", "s/raw/letters", "s/remap", "s/map", "s/letters", "s", event_schema(_DATA)
)
_READ = {"s/raw": _RAW, "s/raw/letters": LETTER_SCHEMA, "s/remap": REMAP_SCHEMA}
_WRITTEN = {"s/map": EVENT_MAP_SCHEMA, "s/letters": LETTER_SCHEMA, "s": event_schema(_DATA)}
_TURNS_MAX = 100_000
"""Turns of the event loop that the stage of one case may take."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One entry of a case: an event with the text of its record, or a heartbeat without.

    `wall` is the wall clock at the arrival, None where the case has none.
    """

    text: str | None
    at: int
    until: int | None
    partition: int
    wall: int | None


@dataclass(frozen=True, slots=True)
class Release:
    """An event that became definite: its text, the instant it is present from, the release."""

    text: str
    start: int
    step: int


@dataclass(frozen=True, slots=True)
class Staged:
    """Contents of the collections: the frontier after each entry, the entries it refused, the
    events.

    A frontier is None until every partition has spoken.
    """

    frontiers: tuple[int | None, ...]
    refused: frozenset[int]
    releases: tuple[Release, ...]


async def stage(
    arrivals: Sequence[Arrival],
    *,
    skew: int,
    corrections: bool,
    max_ahead: int | None,
    upper: int,
) -> Staged:
    """All that the event stage makes of `arrivals`, closed at `upper` by a heartbeat.

    Raises: CaseError if the wall clock of a case goes back.
    """
    instants, scale = _instants(arrivals)
    end = max([*instants, upper * scale, 1]) + 1
    ahead = None if max_ahead is None or scale == 1 else max_ahead * scale
    policy = EventPolicy(
        EventColumns(tuple(_DATA.names), "at", "until"), Policy(skew * scale), corrections, ahead
    )
    clock, ids = ManualClock(0), map(str, itertools.count())
    collections = Collections(MemoryConsensus(), MemoryBlob(), clock, ids.__next__)
    for name, schema in {**_READ, **_WRITTEN}.items():
        await collections.bind(name, Description(schema, retain_ms=None), frontier(0))
        await collections.retain(name, None)
    partitions = sorted({each.partition for each in arrivals}) or [0]
    rows = [
        (*_cells(each, scale), partitions.index(each.partition), number, instant)
        for number, (each, instant) in enumerate(zip(arrivals, instants, strict=True))
    ]
    rows += [
        (None, None, None, upper * scale, at, len(arrivals) + at, end)
        for at in range(len(partitions))
    ]
    await _write(collections, _bindings(len(partitions)), rows, end)
    await _run(EventStage(_TARGET, policy, collections, clock, ComputeSettings()), clock, end)
    return await _read_back(collections, instants, scale, len(partitions))


def _instants(arrivals: Sequence[Arrival]) -> tuple[list[int], int]:
    """An instant for each arrival, ascending, and the factor of all times of the case.

    The wall clock may stand still between arrivals, and instants ascend. A factor on all times puts
    as many instants inside one tick of the wall clock.
    """
    walls = [each.wall for each in arrivals]
    known = [wall for wall in walls if wall is not None]
    if not known:
        return list(range(2, len(arrivals) + 2)), 1
    if len(known) < len(walls) or known != sorted(known):
        raise CaseError("the wall clock of a case is known at each entry, and never goes back")
    scale = len(arrivals) + 3
    return [wall * scale + number for number, wall in enumerate(known, 2)], scale


def _cells(each: Arrival, scale: int) -> tuple[object, ...]:
    """The data columns of a row, and the instant that it names as a heartbeat."""
    if each.text is None:
        return None, None, None, each.at * scale
    return each.text, each.at * scale, None if each.until is None else each.until * scale, None


def _bindings(partitions: int) -> pa.Table:
    """Bindings by which all partitions are known from instant 1 on."""
    known = [(Partitions(at, at, 0), 1, 1) for at in range(partitions)]
    return rows_of_bindings(
        [
            (Partitions(0, U64_MAX, 0), 0, 1),
            (Partitions(0, U64_MAX, 0), 1, -1),
            *known,
            (Partitions(partitions, U64_MAX, 0), 1, 1),
        ]
    )


async def _write(
    collections: Collections, bindings: pa.Table, rows: Sequence[tuple[object, ...]], end: int
) -> None:
    """Write the inputs of the stage, definite up to and with the instant `end`."""
    names = ("entry", "at", "until", "_heartbeat", "_partition", "_offset", TIME)
    found = [{**dict(zip(names, row, strict=True)), DIFF: 1} for row in rows]
    raw = pa.Table.from_pylist(found, update_schema(_RAW))
    for name, updates in (("s/remap", bindings), ("s/raw", raw), ("s/raw/letters", None)):
        await collections.compare_and_append(
            name, frontier(0), frontier(end + 1), updates, writer="case"
        )


async def _run(stage: EventStage, clock: ManualClock, end: int) -> None:
    """Run the stage until all of its inputs are folded in. Raises: what the stage raises."""
    running = asyncio.create_task(stage.advance_forever())
    for _ in range(_TURNS_MAX):
        if stage.folded > end or running.done():
            break
        await clock.sleep(0)
    running.cancel()
    (ended,) = await asyncio.gather(running, return_exceptions=True)
    if stage.folded <= end:
        raise CaseError(f"the event stage stands still at {stage.folded}") from ended


async def _read_back(
    collections: Collections, instants: Sequence[int], scale: int, partitions: int
) -> Staged:
    """Read back all that the stage has written, with the times of the case."""
    reached = _frontiers(await collections.read_updates(_TARGET.event_map), instants, partitions)
    letters = await collections.read_updates(_TARGET.letters)
    events = (await collections.read_updates(_TARGET.events)).to_pylist()
    bounds = [0 if each is None else each for each in reached]
    begun = sorted((row for row in events if row[DIFF] > 0), key=lambda row: (row[TIME], str(row)))
    releases = [
        Release(row["entry"], row[TIME] // scale, sum(bound <= row[TIME] for bound in bounds))
        for row in begun
    ]
    return Staged(
        tuple(None if each is None else each // scale for each in reached),
        frozenset(letters["offset"].to_pylist()),
        tuple(sorted(releases, key=lambda each: each.step)),
    )


def _frontiers(event_map: pa.Table, instants: Sequence[int], partitions: int) -> list[int | None]:
    """The frontier in the map at each instant; None while a partition has not spoken."""
    changes = sorted(event_map.to_pylist(), key=lambda row: (row[TIME], row[DIFF]))
    held: dict[int, int | None] = {}
    found: list[int | None] = []
    waiting = iter(changes)
    row = next(waiting, None)
    for instant in instants:
        while row is not None and row[TIME] <= instant:
            if row[DIFF] > 0:
                held[row["partition"]] = row["frontier"]
            row = next(waiting, None)
        spoken = all(held.get(at) is not None for at in range(partitions))
        found.append(held[STREAM] if spoken else None)
    return found
