"""The oracle of a run: the contents of the topics, and their consequences by the definitions."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from tidemill.errors import Indeterminate, Unavailable
from tidemill.runtime.clock import Clock
from tidemill.runtime.log import Log
from tidemill.testkit.service_faults.cluster import ALIVE_MS, LATE, SEATS_MIN, SKEW_MS, VIPS
from tidemill.testkit.twins.keyed import Happened, broken, rows_at

RECORDS_PER_POLL = 10_000
AGAIN_S = 0.5

Rows = Counter[tuple[object, ...]]

COLUMNS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "flights": ("plane", "delay", "at", "id", "time", "expires"),
        "delays/late": ("plane", "delay", "id", "time", "expires"),
        "delays/alarm": ("plane", "id", "time", "expires"),
        "delays/busy": ("plane", "count", "max"),
        "meter": ("n", "k"),
        "meter/remap": ("lo", "hi", "offset"),
        "totals/total": ("part", "sum", "count"),
        "ledger": ("id",),
        "heap": ("id",),
        "book": ("plane", "seats"),
        "book/remap": ("lo", "hi", "offset"),
        "seated/big": ("plane", "seats"),
        "crew": ("id", "plane"),
        "crew/remap": ("lo", "hi", "offset"),
        "flights/deadletters": ("partition", "offset"),
        "book/deadletters": ("partition", "offset"),
        "crew/deadletters": ("partition", "offset"),
        "meter/deadletters": ("partition", "offset"),
        "grain/deadletters": ("partition", "offset"),
        "drop/deadletters": ("partition", "offset"),
        "grain": ("n",),
        "drop": ("n",),
        "web": ("id",),
    }
)
"""Columns that are compared of each collection, in this order."""


Whole = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""A value of a column of whole numbers; neither a fraction nor a truth value is one."""


class Flight(msgspec.Struct, frozen=True):
    """A row of the stream of events."""

    plane: str
    delay: Whole
    at: Whole
    id: Whole

    @property
    def expires(self) -> int:
        """The first instant at which it is not present any more."""
        return self.at + ALIVE_MS


class Reading(msgspec.Struct, frozen=True):
    """A row of the stream on the system timeline."""

    n: Whole
    k: Whole


class Seats(msgspec.Struct, frozen=True):
    """The value of a record of the book."""

    seats: Whole


class Member(msgspec.Struct, frozen=True):
    """A row of the crew."""

    id: Whole
    plane: str


class Change(msgspec.Struct, frozen=True):
    """A record of the crew, as Debezium writes it."""

    op: Literal["c", "u", "d", "r"]
    before: Member | None
    after: Member | None


Row = TypeVar("Row", Flight, Reading, Seats, Change)
MARKS = re.compile("[\u0300-\u036f]{31}")
"""More combining marks in a row than any text may have."""


class Topic:
    """The records of a topic by partition and offset, read by nobody who is looked at; `keys`
    likewise.
    """

    def __init__(self, log: Log, name: str, partitions: int, clock: Clock) -> None:
        self.name = name
        self.records: list[dict[int, bytes]] = [{} for _ in range(partitions)]
        self.keys: list[dict[int, bytes]] = [{} for _ in range(partitions)]
        self._log = log
        self._clock = clock
        self._next = dict.fromkeys(range(partitions), 0)

    async def follow(self) -> None:
        """Read for ever; a broker that is away is waited for."""
        while True:
            try:
                reader = await self._log.reader(self.name, self._next)
                try:
                    while True:
                        for record in await reader.poll(RECORDS_PER_POLL, 1.0):
                            self.records[record.partition][record.offset] = record.value or b""
                            self.keys[record.partition][record.offset] = record.key or b""
                        self._next = reader.positions()
                finally:
                    await reader.close()
            except (Unavailable, Indeterminate):
                await self._clock.sleep(AGAIN_S)

    async def catch_up(self) -> None:
        """Wait until everything has been read that is there now."""
        while True:
            try:
                bounds = await self._log.bounds(self.name)
                break
            except (Unavailable, Indeterminate):
                await self._clock.sleep(AGAIN_S)
        while any(self._next[p] < high for p, (_, high) in bounds.items()):
            await self._clock.sleep(0.02)


def decoded(record: bytes) -> dict[str, int | str] | None:
    """A record's object; None for one that is to be a dead letter."""
    try:
        found = json.loads(record, parse_constant=_none_of_json)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _none_of_json(word: str) -> None:
    """NaN and Infinity: Python would read them. Raises: ValueError."""
    raise ValueError(word)


def row_of(record: bytes, kind: type[Row]) -> Row | None:
    """The row of a record; None for one that is to be a dead letter: no object, another type, too
    many marks.
    """
    found = decoded(record)
    try:
        row = None if found is None else msgspec.convert(found, kind)
    except msgspec.ValidationError:
        return None
    return None if any(map(MARKS.search, _texts(found))) else row


def _texts(found: Any) -> Iterator[str]:
    """Every text within a value of JSON."""
    if isinstance(found, str):
        yield found
    elif isinstance(found, dict):
        for each in found.values():
            yield from _texts(each)


class Oracle:
    """The contents of each collection that follow, by the definitions, from the records taken."""

    def __init__(self, flights: Topic, meter: Topic, book: Topic, crew: Topic) -> None:
        self._flights = flights
        self._meter = meter
        self._book = book
        self._crew = crew
        self._taken = [0] * len(flights.records)
        self._by_second: defaultdict[int, list[Flight]] = defaultdict(list)
        self.bad: Counter[tuple[int, int]] = Counter()
        """Partition and offset of each record that is no row."""
        self.disordered: list[Flight] = []
        """Events behind what their partition had promised: the generator never means to write one.
        """
        self._latest = [0] * len(flights.records)

    def take(self) -> None:
        """Take in what has been read of the events since the last time."""
        for partition, records in enumerate(self._flights.records):
            for offset in range(self._taken[partition], len(records)):
                flight = row_of(records[offset], Flight)
                if flight is None:
                    self.bad[partition, offset] += 1
                    continue
                if flight.at < self._latest[partition] - SKEW_MS:
                    self.disordered.append(flight)
                self._latest[partition] = max(self._latest[partition], flight.at)
                self._by_second[flight.at // 1000].append(flight)
            self._taken[partition] = len(records)

    def alive(self, at: int) -> Iterator[Flight]:
        """The events that are present at an instant of event time."""
        for second in range((at - ALIVE_MS) // 1000, at // 1000 + 1):
            yield from (f for f in self._by_second[second] if f.at <= at < f.expires)

    def events_at(self, at: int) -> dict[str, Rows]:
        """The contents of the stream, and of the view over it, at an instant of event time."""
        alive = list(self.alive(at))
        late = [f for f in alive if f.delay > LATE]
        planes = {f.plane for f in alive}
        return {
            "flights": Counter((f.plane, f.delay, f.at, f.id, f.at, f.expires) for f in alive),
            "delays/late": Counter((f.plane, f.delay, f.id, f.at, f.expires) for f in late),
            "delays/alarm": Counter(
                (f.plane, f.id, f.at, f.expires) for f in late if f.plane in VIPS
            ),
            "delays/busy": Counter(
                (
                    plane,
                    sum(f.plane == plane for f in alive),
                    max(f.delay for f in alive if f.plane == plane),
                )
                for plane in planes
            ),
        }

    def alarms(self, before: int) -> Counter[int]:
        """The events that are to fire whose presence begins before an instant."""
        return Counter(
            f.id
            for flights in self._by_second.values()
            for f in flights
            if f.plane in VIPS and f.delay > LATE and f.at < before
        )

    def readings(self, bound: Mapping[int, int]) -> Iterator[Reading]:
        """The rows of the other stream before these offsets."""
        for partition, offset in bound.items():
            records = self._meter.records[partition]
            for place in range(offset):
                row = row_of(records[place], Reading)
                if row is not None:
                    yield row

    def bad_readings(self) -> Counter[tuple[int, int]]:
        """The places of records of the other stream that are no rows."""
        return Counter(
            (partition, offset)
            for partition, records in enumerate(self._meter.records)
            for offset, record in records.items()
            if row_of(record, Reading) is None
        )

    def readings_at(self, bound: Mapping[int, int]) -> dict[str, Rows]:
        """The contents of that stream, and of the view over it, under these bindings."""
        rows = list(self.readings(bound))
        total: Counter[int] = Counter()
        count: Counter[int] = Counter()
        for row in rows:
            total[row.k] += row.n
            count[row.k] += 1
        return {
            "meter": Counter((row.n, row.k) for row in rows),
            "totals/total": Counter((k, total[k], count[k]) for k in count),
        }

    def bad_in_the_book(self) -> Counter[tuple[int, int]]:
        """The places of records of the book that name no plane, or no seats of it."""
        return _unread(self._book, _written)

    def book_at(self, bound: Mapping[int, int]) -> dict[str, Rows]:
        """The last row of each key before these offsets, and the view over them."""
        rows = rows_at(_happened(self._book, bound, _written), 0).values()
        return {
            "book": Counter(rows),
            "seated/big": Counter(r for r in rows if isinstance(r[1], int) and r[1] > SEATS_MIN),
        }

    def crew_at(self, bound: Mapping[int, int]) -> dict[str, Rows]:
        """The rows that the changes before these offsets leave."""
        return {"crew": Counter(rows_at(_happened(self._crew, bound, _changed), 0).values())}

    def broken(self) -> Counter[tuple[int, int]]:
        """The places of records of the crew that are no changes, or do not follow from what was
        there.
        """
        follows = _happened(self._crew, _everything(self._crew), _changed)
        return _unread(self._crew, _changed) + Counter(broken(follows))


Place = tuple[int, int, bytes, bytes]
"""Partition, offset, key, value."""


def _before(topic: Topic, bound: Mapping[int, int]) -> Iterator[Place]:
    """The records before these offsets; a key is in one partition, so their order among those is no
    matter.
    """
    for partition, end in bound.items():
        keys, records = topic.keys[partition], topic.records[partition]
        yield from ((partition, at, keys[at], records[at]) for at in range(end))


def _everything(topic: Topic) -> dict[int, int]:
    return {partition: len(found) for partition, found in enumerate(topic.records)}


Reader = Callable[[int, int, bytes, bytes], Happened | None]
"""The meaning of a record; None for one that is to be a dead letter."""


def _happened(topic: Topic, bound: Mapping[int, int], read: Reader) -> list[Happened]:
    return [each for place in _before(topic, bound) if (each := read(*place)) is not None]


def _unread(topic: Topic, read: Reader) -> Counter[tuple[int, int]]:
    """The places of records that say nothing."""
    places = _before(topic, _everything(topic))
    return Counter(place[:2] for place in places if read(*place) is None)


def _written(partition: int, offset: int, key: bytes, value: bytes) -> Happened | None:
    """A record of the book: the row of its key from now on, or none where it has no value."""
    try:
        plane = key.decode()
    except UnicodeDecodeError:
        return None
    row = row_of(value, Seats) if value else None
    if not plane or MARKS.search(plane) or (value and row is None):
        return None
    after = None if row is None else (plane, row.seats)
    return Happened(0, partition, offset, "set", None, after, plane)


OPS: Mapping[str, str] = MappingProxyType(
    {"c": "create", "u": "update", "d": "delete", "r": "read"}
)


def _changed(partition: int, offset: int, _: bytes, value: bytes) -> Happened | None:
    """A change of the crew as it is written."""
    change = row_of(value, Change)
    if change is None:
        return None
    before, after = (
        None if row is None else (row.id, row.plane) for row in (change.before, change.after)
    )
    key = (after or before or (None,))[0]
    return Happened(0, partition, offset, OPS[change.op], before, after, key)


def bound_by(rows: Rows, partitions: int) -> dict[int, int]:
    """The offset of each partition by the rows of a remap collection: the greatest that holds for
    it.
    """
    bound = dict.fromkeys(range(partitions), 0)
    for row in rows:
        lo, hi, offset = (int(str(value)) for value in row)
        for partition in bound:
            if lo <= partition <= hi:
                bound[partition] = max(bound[partition], offset)
    return bound


def difference(found: Rows, wanted: Rows) -> str:
    """Missing rows and surplus rows, in short."""
    return f"lacks {_few(wanted - found)}, has {_few(found - wanted)} beside"


def _few(rows: Iterable[object]) -> str:
    some = sorted(map(str, rows))
    return f"{len(some)} ({', '.join(some[:3])}{', …' if len(some) > 3 else ''})"
