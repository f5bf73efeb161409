"""Keyed sources: what is held is what walking the whole history gives, however it is cut."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import pairwise

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.arrangement.column_types import TYPE_NAMES, arrow_type
from tidemill.arrangement.updates import DIFF, TIME, accumulate, between
from tidemill.reclock import CHANGE_SCHEMA, KeyedRows, pack_row
from tidemill.testkit.twins.keyed import Happened, broken, rows_at

SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), False), ("size", pa.float64()), ("name", pa.string())]
)
KEYS = 3
OPS = "set read create update delete"
rows = st.tuples(st.none() | st.sampled_from([0.0, 1.5]), st.none() | st.sampled_from(["a", "ä"]))


@st.composite
def histories(draw: st.DrawFn, *, kept: bool = False, ops: str = OPS) -> list[Happened]:
    """Changes of three rows over two partitions; `kept` follows on, else anything may happen."""
    found: list[Happened] = []
    now: dict[int, tuple[object, ...] | None] = {}
    time = 0
    for offset in range(draw(st.integers(0, 14))):
        time += draw(st.integers(0, 2))
        key = draw(st.integers(0, KEYS - 1))
        after: tuple[object, ...] | None = (key, *draw(rows))
        if kept:
            held = now.get(key)
            op = draw(st.sampled_from(["read", "update", "delete"])) if held else "create"
            before = held
        else:
            op = draw(st.sampled_from(ops.split()))
            before = (key, *draw(rows)) if draw(st.booleans()) else None
        if op == "delete" or (op == "set" and draw(st.booleans())):
            after = None
        now[key] = after
        found.append(Happened(time, key % 2, offset, op, before, after, key))
    return found


def table(history: list[Happened]) -> pa.Table:
    """The history as it comes out of reclocking: in no order."""

    def packed(row: tuple[object, ...] | None) -> bytes | None:
        return None if row is None else pack_row(row)

    columns = {
        "_op": [e.op for e in history],
        "_key": [pack_row([e.key]) for e in history],
        "_before": [packed(e.before) for e in history],
        "_after": [packed(e.after) for e in history],
        "_partition": [e.partition for e in history],
        "_offset": [e.offset for e in history],
        TIME: [e.time for e in history],
        DIFF: [1] * len(history),
    }
    fields = [*CHANGE_SCHEMA, pa.field(TIME, pa.uint64()), pa.field(DIFF, pa.int64())]
    return pa.table(columns, schema=pa.schema(fields)).take(
        pa.array(reversed(range(len(history))), pa.int64())
    )


def held(updates: pa.Table, at: int) -> list[tuple[object, ...]]:
    found = accumulate(updates, at).to_pylist()
    assert all(row[DIFF] == 1 for row in found)
    return sorted((tuple(row[name] for name in SCHEMA.names) for row in found), key=str)


@settings(max_examples=200, deadline=None)
@given(histories() | histories(ops="set"), st.lists(st.integers(0, 30), max_size=3), st.booleans())
def test_what_is_held_is_what_the_whole_history_gives(
    history: list[Happened], cuts: list[int], restarted: bool
) -> None:
    keyed, letters = KeyedRows(SCHEMA, ["id"]), set[tuple[int, int]]()
    written: list[pa.Table] = []
    ends = [0, *sorted(cuts), 40]
    for lower, upper in pairwise(ends):
        if restarted and written:
            # A process that knows nothing but what the output holds.
            keyed = KeyedRows(SCHEMA, ["id"])
            content = accumulate(pa.concat_tables(written), max(0, lower - 1))
            keyed.restore(content if lower else SCHEMA.empty_table())
        applied = keyed.apply(between(table(history), lower, upper))
        written.append(applied.updates)
        letters |= {(each.partition, each.offset) for each in applied.broken}
    updates = pa.concat_tables(written)
    for at in {0, 40, *(each.time for each in history)}:
        assert held(updates, at) == sorted(rows_at(history, at).values(), key=str)
    assert letters == broken(history)
    assert len(keyed) == len(rows_at(history, 40))


@settings(max_examples=200, deadline=None)
@given(histories(kept=True), st.data())
def test_a_history_that_is_delivered_again_ends_as_it_ended(
    history: list[Happened], data: st.DataObject
) -> None:
    assert broken(history) == set()
    begin = data.draw(st.integers(0, len(history)))
    again = [
        each._replace(time=100 + each.time, offset=1_000 + each.offset) for each in history[begin:]
    ]
    keyed = KeyedRows(SCHEMA, ["id"])
    once = keyed.apply(table(history)).updates
    twice = keyed.apply(table(again)).updates
    assert held(pa.concat_tables([once, twice]), 1_000) == held(once, 99)


def test_a_broken_history_says_what_was_meant_and_changes_nothing() -> None:
    keyed = KeyedRows(SCHEMA, ["id"])
    first, other = (1, 1.5, "a"), (1, 0.0, "b")
    history = [
        Happened(1, 0, 0, "create", None, first, 1),
        Happened(2, 0, 1, "update", other, (1, 2.0, "c"), 1),
        Happened(3, 0, 2, "create", None, other, 1),
        Happened(4, 0, 3, "delete", other, None, 1),
        Happened(5, 0, 4, "update", None, (2, None, None), 2),
    ]
    applied = keyed.apply(table(history))
    assert held(applied.updates, 9) == [first]
    assert [(each.time, each.offset, each.reason) for each in applied.broken] == [
        (2, 1, "it changes a row that was not like this before"),
        (3, 2, "it creates a row that is there already"),
        (4, 3, "it deletes a row that was not like this before"),
        (5, 4, "it changes a row, and there is nothing with this key"),
    ]
    assert applied.broken[0].change == (
        '{"op":"update","before":{"id":1,"size":0.0,"name":"b"},'
        '"after":{"id":1,"size":2.0,"name":"c"}}'
    )


def test_rows_of_every_type_are_held_restored_and_compared() -> None:
    """A change of a row with a date, a span or a decimal number broke its source for good."""
    schema = pa.schema({name: arrow_type(name) for name in ("decimal(10,2)", *TYPE_NAMES)})
    one = [
        Decimal("1.5"), 1, 1.5, "a", True, datetime(1969, 12, 31, 23, 59, 59, 5, UTC), date(1, 1, 1),
        timedelta(microseconds=-1), b"\x00\xff", bytes(16), '{"a":1.5}',
    ]  # fmt: skip
    two = [Decimal("1.500"), *(None for _ in one[1:])]
    key = ["decimal(10,2)"]

    def change(
        op: str, at: int, before: list[object] | None, after: list[object] | None
    ) -> pa.Table:
        told = Happened(at, 0, at, op, before and tuple(before), after and tuple(after), 0)
        number = (before or after or [])[0]
        keys = pa.array([pack_row([number])], pa.binary())
        made = table([told])
        return made.set_column(made.column_names.index("_key"), made.schema.field("_key"), keys)

    keyed = KeyedRows(schema, key)
    first = keyed.apply(change("create", 1, None, one))
    assert first.broken == ()
    (row,) = first.updates.select(schema.names).to_pylist()
    assert list(row.values()) == one
    again = KeyedRows(schema, key)
    again.restore(first.updates)  # its decimal numbers have the digits of the column
    second = again.apply(change("update", 2, one, two))
    assert second.broken == ()
    assert accumulate(pa.concat_tables([first.updates, second.updates]), 2).num_rows == 1
    third = again.apply(change("delete", 3, [Decimal("1.50"), *two[1:]], None))
    assert third.broken == ()
    assert len(again) == 0
