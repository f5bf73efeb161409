"""Each kind of poison of `make chaos-services`, given to one quiet server: it becomes what the
storms expect of it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest

from tidemill.client.rows import table_of
from tidemill.errors import Exhausted, UsageError
from tidemill.rpc.messages import ResourceDocument
from tidemill.runtime.log import Entry
from tidemill.testkit.service_faults.cluster import (
    BOOK,
    CREW,
    DROP,
    FLIGHTS,
    GRAIN,
    METER,
    POISONED,
    SPOIL,
)
from tidemill.testkit.service_faults.endpoints import ANSWERS, endpoints
from tidemill.testkit.service_faults.oracle import Change, Flight, Reading, Seats, row_of
from tidemill.testkit.service_faults.outcome import Outcome
from tidemill.testkit.service_faults.poison import (
    BROKEN_ROWS,
    KEYS,
    LINES,
    documents,
    grain,
    grains,
    prepare_files,
    records,
)
from tidemill.testkit.whole import Whole, opened
from tidemill.time import sole_time
from tidemill_server.settings import ServerSettings

HEAD = "apiVersion: tidemill.dev/v1alpha1\n"
SOURCES = f"""
{HEAD}kind: Source
metadata: {{name: {FLIGHTS}}}
spec:
  kafka: {{topic: {FLIGHTS}}}
  columns: [{{name: plane, type: text}}, {{name: delay, type: int}}, {{name: at, type: int}}, {{name: id, type: int}}]
  timestampInterval: 50ms
---
{HEAD}kind: Source
metadata: {{name: {METER}}}
spec: {{kafka: {{topic: {METER}}}, columns: [{{name: n, type: int}}, {{name: k, type: int}}], timestampInterval: 50ms}}
---
{HEAD}kind: Source
metadata: {{name: {BOOK}}}
spec:
  kafka: {{topic: {BOOK}}}
  keyFormat: {{text: {{}}}}
  envelope: {{upsert: {{key: [plane]}}}}
  columns: [{{name: plane, type: text}}, {{name: seats, type: int}}]
  timestampInterval: 50ms
---
{HEAD}kind: Source
metadata: {{name: {CREW}}}
spec:
  kafka: {{topic: {CREW}}}
  envelope: {{debezium: {{key: [id]}}}}
  columns: [{{name: id, type: int}}, {{name: plane, type: text}}]
  timestampInterval: 50ms
---
{HEAD}kind: Table
metadata: {{name: ledger}}
spec: {{columns: [{{name: id, type: int}}]}}
"""


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Whole]:
    settings = ServerSettings(
        directory=str(folder / "state"), retry_s_min=0.05, retry_s_max=0.2, broken_s_max=0.2
    )
    async with opened(settings) as process:
        await process.start()
        yield process


async def apply(process: Whole, text: str) -> None:
    await process.controller.apply([ResourceDocument(text, "test.yaml")])


async def wait_for_rows(process: Whole, name: str, count: int) -> list[dict[str, object]]:
    """The rows of a collection, once there are so many."""
    async with asyncio.timeout(120):
        while True:
            upper = sole_time((await process.context.collections.status(name)).upper)
            if upper > 1:
                table = (await process.query.snapshot(name, upper - 1, 0.0)).table
                if table.num_rows >= count:
                    return [dict(row) for row in table.to_pylist()]
            await asyncio.sleep(0.02)


async def test_a4_every_poisoned_record_is_a_dead_letter_and_rows_beside_it_come(
    tmp_path: Path,
) -> None:
    good = {
        FLIGHTS: b'{"plane": "N1", "delay": 1, "at": 1, "id": 1}',
        METER: b'{"n": 1, "k": 1}',
        BOOK: b'{"seats": 1}',
        CREW: b'{"op": "c", "before": null, "after": {"id": 1, "plane": "N1"}}',
    }
    kinds: dict[str, type[Flight | Reading | Seats | Change]] = {
        FLIGHTS: Flight, METER: Reading, BOOK: Seats, CREW: Change,
    }  # fmt: skip
    async with running(tmp_path) as process:
        await apply(process, SOURCES)
        for topic, kind in kinds.items():
            assert row_of(good[topic], kind) is not None
            poisons = records(topic)
            accepted = [name for name, value in poisons.items() if row_of(value, kind) is not None]
            assert accepted == []
            key = b"P0" if topic == BOOK else None
            entries = [Entry(key, value, 0) for value in poisons.values()]
            if topic == BOOK:
                entries += [Entry(each, good[topic], 0) for each in KEYS.values()]
            places = await process.context.log.append(topic, entries)
            await process.context.log.append(topic, [Entry(key, good[topic], 0)])
            assert len(await wait_for_rows(process, topic, 1)) == 1
            letters = await wait_for_rows(process, f"{topic}/deadletters", len(entries))
            assert Counter((row["partition"], row["offset"]) for row in letters) == Counter(
                tuple(place) for place in places
            )


async def test_a4_avro_and_lines_of_poison_are_dead_letters_whatever_the_registry_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    prepare_files(tmp_path)
    outcome = Outcome()
    async with endpoints() as served, running(tmp_path) as process:
        served.random, served.outcome = Random("seed"), outcome
        await apply(process, POISONED.replace("ENDPOINTS", served.url))
        poisons = grains()
        entries = [Entry(None, value, 0) for value in poisons.values()]
        await process.context.log.append(GRAIN, [*entries, Entry(None, grain(70), 0)])
        assert [row["n"] for row in await wait_for_rows(process, GRAIN, 1)] == [70]
        letters = await wait_for_rows(process, f"{GRAIN}/deadletters", len(poisons))
        assert sorted(int(str(row["offset"])) for row in letters) == list(range(len(poisons)))
        faults = dict(outcome.counted("fault: "))
        assert {f"registry answers {each}" for each in ANSWERS} <= faults.keys()
        with (tmp_path / f"{DROP}.csv").open("ab") as file:
            file.write(b"".join(b"%s\n" % line for line in LINES.values()) + b"7\n")
        assert {row["n"] for row in await wait_for_rows(process, DROP, 2)} == {0, 7}
        assert len(await wait_for_rows(process, f"{DROP}/deadletters", len(LINES))) == len(LINES)
        (tmp_path / f"{SPOIL}.csv").write_bytes(b"\xff")
        async with asyncio.timeout(60):
            while True:
                said = {s.name: s.reason for s in await process.controller.get("Source", None)}
                if said[SPOIL] in ("Stalled", "Broken"):
                    break
                await asyncio.sleep(0.02)
        assert {
            name for name, reason in said.items() if reason not in ("Running", "NoRecords")
        } == {SPOIL}


async def test_a4_every_hostile_row_and_document_is_refused_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as process:
        await apply(process, SOURCES)
        before = {f"{s.kind}/{s.name}" for s in await process.controller.get(None, None)}
        for row in BROKEN_ROWS.values():
            with pytest.raises(UsageError):
                await process.controller.insert("ledger", table_of([row]))
        for name, text in documents().items():
            if name == "a file of the machine":
                continue  # a server on loopback, and alone, reads what its user may read
            with pytest.raises((UsageError, Exhausted)):
                await apply(process, text)
        assert {f"{s.kind}/{s.name}" for s in await process.controller.get(None, None)} == before
        assert await wait_for_rows(process, "ledger", 0) == []
