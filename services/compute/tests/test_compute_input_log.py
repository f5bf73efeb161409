"""The log of an input: each reader gets each change once, however readers come and go."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.arrangement.updates import TIME, accumulate, between, consolidate, update_schema
from tidemill_compute.views import input_log
from tidemill_compute.views.shared_inputs import SharedInput

SCHEMA = update_schema(pa.schema([("name", pa.string())]))


def table(updates: list[tuple[str, int, int]]) -> pa.Table:
    columns = list(zip(*updates, strict=True)) or [(), (), ()]
    arrays = [pa.array(c, field.type) for c, field in zip(columns, SCHEMA, strict=True)]
    return pa.table(arrays, schema=SCHEMA)


@dataclass(eq=False)
class Reader:
    """A view's place, and the changes that it was given."""

    shared: SharedInput
    upper: int
    begun: int
    given: list[pa.Table] = field(default_factory=list)
    lower = 0
    columns = facts = None

    def extend(self, changes: pa.Table, upper: int) -> None:
        self.given.append(changes)
        self.upper = upper


class Store:
    """The store with the updates of an input, and how often it was asked."""

    def __init__(self, updates: list[tuple[str, int, int]]) -> None:
        self.updates = table(updates)
        self.contents = self.changes = 0

    async def present(self, at: int) -> pa.Table:
        self.contents += 1
        return accumulate(self.updates, at)

    async def read(self, lower: int, upper: int) -> pa.Table:
        self.changes += 1
        return between(self.updates, lower, upper)


UPDATES = [(name, time, 1) for time in range(30) for name in "ab"]


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_each_reader_gets_each_change_once_whoever_else_reads(data: st.DataObject) -> None:
    store, shared, readers, upper = Store(UPDATES), SharedInput(), list[Reader](), 3

    async def begin(at: int) -> None:
        reader = Reader(shared, at + 1, at)
        shared.join(reader)
        assert (await shared.present(reader, at, store.present)).equals(
            accumulate(store.updates, at)
        )
        readers.append(reader)

    async def run() -> None:
        nonlocal upper
        for _ in range(data.draw(st.integers(1, 25))):
            action = data.draw(st.sampled_from(["begin", "read", "read", "read", "leave", "grow"]))
            if action == "grow":
                upper = min(30, upper + data.draw(st.integers(1, 4)))
            elif action == "begin":
                await begin(data.draw(st.integers(0, upper - 1)))
            elif readers and action == "leave":
                shared.leave(readers.pop(data.draw(st.integers(0, len(readers) - 1))))
            elif readers:
                reader = data.draw(st.sampled_from(readers))
                await shared.read(reader, max(reader.upper, upper), store.read)

    asyncio.run(run())
    for reader in readers:
        wanted = between(store.updates, reader.begun + 1, reader.upper)
        found = pa.concat_tables([SCHEMA.empty_table(), *reader.given])
        assert consolidate(found).equals(consolidate(wanted))


def readers_at(shared: SharedInput, store: Store, *places: int) -> list[Reader]:
    """Views that have begun, one after the other."""
    found = [Reader(shared, at + 1, at) for at in places]

    async def begin() -> None:
        for reader in found:
            shared.join(reader)
            await shared.present(reader, reader.begun, store.present)

    asyncio.run(begin())
    return found


def test_views_that_begin_together_read_the_contents_once() -> None:
    store, shared = Store(UPDATES), SharedInput()
    first, *others = readers_at(shared, store, 5, 5, 5)
    assert store.contents == 1
    asyncio.run(shared.read(first, 9, store.read))
    assert len(readers_at(shared, store, 8)) == 1
    assert store.contents == 1, "the log goes on from the contents that others hold"
    assert [len(other.given) for other in others] == [0, 0]


def test_what_all_views_have_is_forgotten_and_what_one_lacks_is_not() -> None:
    store, shared = Store(UPDATES), SharedInput()
    fast, slow = readers_at(shared, store, 5, 5)

    async def read(reader: Any, until: int) -> None:
        await shared.read(reader, until, store.read)

    asyncio.run(read(fast, 10))
    asyncio.run(read(fast, 20))
    assert len(shared.log) >= 2 * (20 - 6)
    asyncio.run(read(slow, 20))
    assert (len(shared.log), store.changes) == (0, 2)
    assert slow.upper == 20
    assert min(part.column(TIME)[0].as_py() for part in slow.given) == 6
    assert shared.log.holders == 2


def test_a_view_that_is_far_behind_holds_nothing_back(monkeypatch: Any) -> None:
    monkeypatch.setattr(input_log, "ROWS_MAX", 12)
    store, shared = Store(UPDATES), SharedInput()
    fast, slow = readers_at(shared, store, 2, 2)
    for until in range(4, 30, 2):
        asyncio.run(shared.read(fast, until, store.read))
    assert len(shared.log) <= 12
    before = store.changes
    asyncio.run(shared.read(slow, 28, store.read))
    assert (slow.upper, store.changes) == (28, before + 1)


def test_views_that_are_gone_hold_nothing() -> None:
    store, shared = Store(UPDATES), SharedInput()
    stays, goes = readers_at(shared, store, 5, 5)
    asyncio.run(shared.read(stays, 20, store.read))
    shared.leave(goes)
    asyncio.run(shared.read(stays, 22, store.read))
    assert (shared.log.holders, len(shared.log)) == (0, 0)


def test_for_one_view_nothing_is_kept_and_the_next_one_lacks_nothing() -> None:
    store, shared = Store(UPDATES), SharedInput()
    (alone,) = readers_at(shared, store, 5)
    for until in (10, 12, 14):
        asyncio.run(shared.read(alone, until, store.read))
        assert (shared.log.holders, len(shared.log)) == (0, 0)
    (later,) = readers_at(shared, store, 9)
    for until in (16, 20):
        for reader in (later, alone):
            asyncio.run(shared.read(reader, until, store.read))
    for reader, first in ((alone, 6), (later, 10)):
        times = [t for part in reader.given for t in part.column(TIME).to_pylist()]
        assert sorted(times) == [time for _, time, _ in UPDATES if first <= time < 20]


def test_views_of_an_input_from_its_beginning_on_read_its_changes_once() -> None:
    """They have no contents to hold, so that the first one to read holds for all."""
    store, shared = Store(UPDATES), SharedInput()
    readers = [Reader(shared, 0, -1) for _ in range(3)]
    for reader in readers:
        shared.join(reader)
    for until in (10, 20):
        for reader in readers:
            asyncio.run(shared.read(reader, until, store.read))
    assert (store.changes, len(shared.log)) == (2, 0)
    assert [sum(part.num_rows for part in reader.given) for reader in readers] == [40, 40, 40]
