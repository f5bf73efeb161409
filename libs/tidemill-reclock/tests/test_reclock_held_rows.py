"""The table of held rows: it holds what a dict would, and few bytes beside it."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from random import Random

import pyarrow as pa
import pytest

from tidemill.arrangement.updates import DIFF, TIME
from tidemill.reclock import CHANGE_SCHEMA
from tidemill.reclock.held_rows import HeldRows, Taken

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
    fields = [*CHANGE_SCHEMA, pa.field(TIME, pa.uint64()), pa.field(DIFF, pa.int64())]
    return pa.table(columns, schema=pa.schema(fields))


def told(taken: Taken) -> Counter[tuple[bytes, int]]:
    """Rows that came and went, with their signs."""
    ends = taken.stops.tolist()
    rows = [taken.data[a:b].tobytes() for a, b in pairwise(ends)]
    return Counter(zip(rows, taken.diffs.tolist(), strict=True))


def size_of(held: HeldRows) -> int:
    return sum(array.nbytes for array in vars(held).values())


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
