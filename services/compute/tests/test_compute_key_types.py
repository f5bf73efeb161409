"""Views are divided by keys of each type of the language, and say what the twin says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from random import Random
from uuid import UUID

import msgspec
import pyarrow as pa
import pytest

from tidemill.arrangement.column_types import arrow_type
from tidemill.catalog.record_rows import shape_of_relation
from tidemill.datalog.inputs import InputSchema
from tidemill.testkit import mortal_views
from tidemill.testkit.faults.fuse import Fuse
from tidemill.testkit.mortal_views import END, World, expected, follow, table
from tidemill.testkit.twins.window_tasks import evaluate_here
from tidemill_compute.views.engines import Engine, Engines, Windows
from tidemill_compute.views.windows.collecting import answer
from tidemill_compute.views.windows.work import WindowWork

VALUES: Mapping[str, Sequence[object]] = {
    "int": (0, 1, -1, 2**53 + 1),
    "float": (0.0, -0.0, 2.0**53, float("inf")),
    "text": ("", "a", "é"),
    "bool": (True, False),
    "timestamp": (datetime(1970, 1, 1, tzinfo=UTC), datetime(2013, 1, 1, 0, 0, 0, 1, UTC)),
    "date": (date(1970, 1, 1), date(2013, 2, 28)),
    "duration": (timedelta(0), timedelta(microseconds=-1), timedelta(days=3)),
    "decimal(10,2)": (Decimal("0.00"), Decimal("1.00"), Decimal("-1.50")),
    "bytes": (b"", b"\x00", b"\xff"),
    "uuid": (UUID(int=0).bytes, UUID(int=5).bytes),
    "json": ('{"a":1}', "[1,2]", "1"),
}
PROGRAM = """
    here(k, n) := pair(k, n) ^ key(k);
    gone(k, n) := pair(k, n) ^ not key(k);
    many(k) @count(n) @max(n) := pair(k, n) ^ key(k);
    of(n) @count(k) @set(k) := here(k, n);
    reach(k, n) := here(k, n);
    reach(k, m) := reach(k, n) ^ step(n, m);
    step(0, 1); step(1, 2);
"""


def rows(
    keys: Sequence[object], numbers: Sequence[object], random: Random
) -> list[tuple[object, ...]]:
    """Rows that come, go and come again."""
    found = []
    for row in {(repr(k), n): (k, n) for k in (*keys, None) for n in numbers}.values():
        times = sorted(random.sample(range(END), random.randrange(4)))
        found += [(*row, at, 1 - 2 * (n % 2)) for n, at in enumerate(times)]
    return found


def world_of(kind: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> World:
    """Inputs whose keys are of a type."""
    random = Random(f"{kind} {seed}")
    pair = pa.schema([("k", arrow_type(kind)), ("n", pa.int64())])
    key = pair.remove(1)
    pairs = rows(VALUES[kind], (0, 1, 2, None), random)
    keys = [(k, *rest) for k, _, *rest in rows(VALUES[kind], (0,), random)]
    history = {"pair": table(pairs, pair), "key": table(keys, key)}
    for name, schema in (("pair", pair), ("key", key)):
        columns = tuple((each, kind if each == "k" else "int") for each in schema.names)
        known = InputSchema(name, "relation", columns)  # type: ignore[arg-type]  # names of types
        monkeypatch.setitem(mortal_views.SCHEMAS, name, known)
        monkeypatch.setitem(mortal_views.INPUTS, name, (name, shape_of_relation(name, schema)))
    monkeypatch.setattr(mortal_views, "history", lambda seed: history)
    return World(PROGRAM, seed)


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("seed", range(3))
async def test_views_go_to_windows_and_back_with_keys_of_each_type(
    kind: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, random, ranges = world_of(kind, seed, monkeypatch), Random(seed), set[int]()
    await world.create()

    async def ask(packed: bytes) -> bytes:
        ranges.add(WindowWork(packed, world.stores[1], None).divided.ranges)
        return msgspec.msgpack.encode(await answer(packed, world.stores[1], None, evaluate_here))

    fed = 0
    while fed < END:
        upper = min(END, fed + random.randrange(3, 15))
        await world.feed(fed, upper)
        fed = upper
        view = world.view(world.process(Fuse(None)), random.randrange(2, 9))
        engine: Engine = random.choice(("spark", "spark", "local"))
        view.engines = Engines(engine, Windows(ask, world.clock.now_ms, lambda: "test"), 1 << 30)
        await follow(world, view, fed)
    assert await world.contents() == expected(world.program, world.history)
    assert min(ranges) > 1
