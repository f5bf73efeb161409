"""The table of held rows: it holds what a dict would, and few bytes beside it."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from tidemill.arrangement.updates import DIFF, TIME
from tidemill.reclock import CHANGE_SCHEMA, held_rows
from tidemill.reclock.held_rows import HeldRows, Taken
from tidemill.testkit.twins.keyed import Happened, broken, rows_at

SCHEMA = pa.schema([*CHANGE_SCHEMA, pa.field(TIME, pa.uint64()), pa.field(DIFF, pa.int64())])
BESIDE_MAX = 100
"""Bytes of a key beside its row."""


def stated(rows: dict[bytes, bytes | None], time: int) -> pa.Table:
    """Changes by which these keys have these rows from a time on."""
    count = len(rows)
    columns = {
        "_op": ["set"] * count, "_key": list(rows), "_before": [None] * count,
        "_after": list(rows.values()), "_partition": [0] * count, "_offset": range(count),
        TIME: [time] * count, DIFF: [1] * count,
    }  # fmt: skip
    return pa.table(columns, schema=SCHEMA)


def told(taken: Taken) -> Counter[tuple[bytes, int]]:
    """Rows that came and went, with their signs."""
    ends = taken.stops.tolist()
    rows = [taken.data[a:b].tobytes() for a, b in pairwise(ends)]
    return Counter(zip(rows, taken.diffs.tolist(), strict=True))


def size_of(held: HeldRows) -> int:
    return sum(getattr(array, "nbytes", 0) for array in vars(held).values())


@pytest.mark.parametrize("length", [1, 20, 3_000])
def test_rows_of_any_length_go_and_come_as_in_a_dict(length: int) -> None:
    draw, held, twin = Random(length), HeldRows(), dict[bytes, bytes]()
    for time in range(1, 40):
        changes: dict[bytes, bytes | None] = {}
        for _ in range(draw.choice([1, 300])):
            key = b"%d" % draw.randrange(600)
            changes[key] = None if draw.random() < 0.2 else draw.randbytes(draw.randint(1, length))
        expected = Counter[tuple[bytes, int]]()
        for key, row in changes.items():
            before = twin.pop(key, None)
            if row is not None:
                twin[key] = row
            if before != row:
                expected.update((each, d) for each, d in ((before, -1), (row, 1)) if each)
        assert told(held.take(stated(changes, time))) == expected
        assert len(held) == len(twin)
        most = sum(len(key) + len(row) for key, row in twin.items())
        assert size_of(held) < 3 * most + 600 * length + 100_000


def test_a_key_has_few_bytes_beside_its_row() -> None:
    held, keys, each = HeldRows(), 60_000, 20
    for first in range(0, keys, 10_000):
        rows = {b"A%09d" % key: bytes(each) for key in range(first, first + 10_000)}
        held.take(stated({**rows}, 1 + first))
    assert len(held) == keys
    assert size_of(held) / keys - each < BESIDE_MAX


def test_memory_by_key_is_given_back_when_most_keys_are_gone() -> None:
    held, keys = HeldRows(), 30_000
    rows: dict[bytes, bytes | None] = {b"%d" % key: b"a row" for key in range(keys)}
    held.take(stated(rows, 1))
    most = size_of(held)
    held.take(stated(dict.fromkeys(list(rows)[10:]), 2))
    held.take(stated({b"0": b"another row"}, 3))
    assert len(held) == 10
    assert size_of(held) < most / 50
    expected = Counter((row, 1) for row in list(rows.values())[10:])
    assert told(held.take(stated(rows, 4))) == expected + Counter(
        {(b"another row", -1): 1, (b"a row", 1): 1}
    )
    assert len(held) == keys


def calls_of_loop(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """For each call of the loop the bytes in which it may keep rows before."""
    calls = list[int]()

    def take(*given: Any) -> int:  # Any: the arguments of a compiled loop
        calls.append(given[-9].nbytes)
        return int(take_changes(*given))

    take_changes = held_rows.take_changes
    monkeypatch.setattr(held_rows, "take_changes", take)
    return calls


def test_a_take_has_the_room_for_rows_before_that_the_last_one_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a long row that does not change nothing depends."""
    held, long = HeldRows(), 1_000_000
    held.take(stated({b"long": bytes(long)}, 1))
    calls = calls_of_loop(monkeypatch)
    for time in range(2, 20):
        held.take(stated({b"%d" % key: b"%2d" % time * 500 for key in range(20)}, time))
    assert calls[-3:] == [calls[-1]] * 3
    assert len(calls) < 18 + 10
    assert 20 * 1_000 <= calls[-1] < 100_000


def test_rows_that_are_stated_again_are_not_kept_as_rows_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held, rows = HeldRows(), {b"%d" % key: b"%d" % key * 1_000 for key in range(60)}
    held.take(stated({**rows}, 1))
    calls = calls_of_loop(monkeypatch)
    assert told(held.take(stated({**rows}, 2))) == Counter()
    assert len(calls) == 1


def some_change(
    draw: Random, latest: dict[object, tuple[bytes] | None], time: int, offset: int,
    keys: int, length: int,
) -> Happened:  # fmt: skip
    """A change of a database or of a snapshot, of which some do not follow from what is there."""
    key = b"%d" % at if (at := draw.randrange(keys)) else b""
    op = draw.choice(("set", "read", "create", "update", "update", "delete"))
    after = (draw.randbytes(draw.randint(0, length)),)
    after = draw.choice((latest.get(key), None, *[after] * 6))
    before = draw.choice((None, latest.get(key), latest.get(key), (b"other",)))
    after = latest[key] = None if op == "delete" else after
    return Happened(time, draw.randrange(2), offset, op, before, after, key)


def in_chunks(draw: Random, changes: list[Happened]) -> pa.Table:
    rows = [
        (each.op, each.key, *(row and row[0] for row in (each.before, each.after)),
         each.partition, each.offset, each.time, 1)
        for each in changes
    ]  # fmt: skip
    table = pa.table(list(zip(*rows, strict=True)) or [[]] * len(SCHEMA), schema=SCHEMA)
    middle = draw.randint(0, len(rows))
    return pa.concat_tables([table[:middle], table[middle:]])


@pytest.mark.parametrize("length", [0, 3, 3_000])
@pytest.mark.parametrize("keys", [1, 3, 40])
@pytest.mark.parametrize("seed", range(8))
def test_changes_of_any_kind_say_what_the_twin_says(seed: int, keys: int, length: int) -> None:
    """A key comes several times at one time, and rows before need more room in its middle."""
    draw, held, history, time = Random(seed), HeldRows(), list[Happened](), 0
    latest = dict[object, tuple[bytes] | None]()
    for _ in range(draw.randint(3, 8)):
        since, time, came = time, time + 1, list[Happened]()
        for _ in range(draw.choice((0, 1, 5, 100))):
            time += draw.random() < 0.05
            offset = len(history) + len(came)
            came.append(some_change(draw, latest, time, offset, keys, length))
        history += came
        draw.shuffle(came)
        taken = held.take(in_chunks(draw, came))
        expected, rows = Counter[tuple[object, int, int]](), rows_at(history, since)
        for at in range(since + 1, time + 1):
            before, rows = rows, rows_at(history, at)
            for key in before | rows:
                if before.get(key) != rows.get(key):
                    ends = (before.get(key), -1), (rows.get(key), 1)
                    expected.update((row[0], at, diff) for row, diff in ends if row is not None)
        stops = pairwise(taken.stops.tolist())
        packed = [taken.data[a:b].tobytes() for a, b in stops]
        found = zip(packed, taken.times.tolist(), taken.diffs.tolist(), strict=True)
        assert Counter(found) == expected
        assert taken.times.tolist() == sorted(taken.times.tolist())
        refused = zip(came, taken.refused.tolist(), strict=True)
        places = {(each.partition, each.offset) for each, reason in refused if reason}
        assert places == {place for place in broken(history) if place in places_of(came)}
        assert len(held) == len(rows)


def places_of(changes: list[Happened]) -> set[tuple[int, int]]:
    return {(each.partition, each.offset) for each in changes}
