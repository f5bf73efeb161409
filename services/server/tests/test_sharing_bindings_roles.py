"""Sources of one Kafka topic that share their bindings, over processes of which some are killed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from secrets import token_hex

import pytest

from tidemill.client import Client
from tidemill.errors import NotYet
from tidemill.rpc.messages import ResourceDocument
from tidemill.runtime.log import Entry
from tidemill.runtime.log_kafka import KafkaLog
from tidemill.testkit.fleet import Fleet, fleet, until

SOURCE = """
apiVersion: tidemill.dev/v1alpha1
kind: Source
metadata: {name: NAME}
spec: {kafka: {topic: TOPIC, bootstrap: "BROKER"}, FORMAT, timestampInterval: 100ms, retain: all, remap: shop}
"""
FORMATS = {
    "rows": "columns: [{name: n, type: int}]",
    "lines": "format: {text: {}}, columns: [{name: line, type: text}]",
}


async def append(bootstrap: str, topic: str, numbers: Sequence[int]) -> None:
    log = KafkaLog(bootstrap)
    await log.create_topic(topic, 3)
    for n in numbers:
        await log.append(topic, [Entry(None, json.dumps({"n": n}).encode(), n % 3)])
    await log.close()


def numbers(client: Client, source: str, at: int | None = None) -> list[int]:
    """The rows of a source at an instant, or at the latest."""
    cells = client.query(source, as_of=at, timeout_s=60).table.columns[0].to_pylist()
    return sorted(each if isinstance(each, int) else json.loads(each)["n"] for each in cells)


def holds(client: Client, source: str, count: int) -> bool | None:
    return True if numbers(client, source) == list(range(count)) else None


def minter(client: Client) -> str | None:
    """The source that binds for both, once the other stands by."""
    stands = {each: client.describe("Source", each).details.get("standsBy") for each in FORMATS}
    return next(
        (
            e
            for e in stands
            if sorted(map(str, stands.values())) == ["False", "True"] and not stands[e]
        ),
        None,
    )


def apart(system: Fleet) -> tuple[str, str] | None:
    """The processes that bind for each of the sources, once they are two."""
    first, second = (system.owned("remap", f"Source/{each}").name for each in FORMATS)
    return (first, second) if first != second else None


@pytest.mark.server
def test_d3_whoever_binds_is_killed_and_the_other_source_goes_on_with_the_same_instants(
    tmp_path: Path, redis_url: str, kafka_bootstrap: str
) -> None:
    topic = f"sharing-{token_hex(4)}"
    with fleet(tmp_path) as system:
        consensus = f"{redis_url}?prefix={topic}"
        system.options = {"store": {"consensus": consensus, "blob": f"file:{tmp_path / 'blob'}"}}
        asyncio.run(append(kafka_bootstrap, topic, range(20)))
        for name, roles in (
            ("a", "remap"),
            ("b", "remap"),
            ("c", "ingest,reclock,compaction,query"),
        ):
            system.start(name, roles)
        for name, form in FORMATS.items():
            text = SOURCE.replace("NAME", name).replace("TOPIC", topic).replace("FORMAT", form)
            document = ResourceDocument(text.replace("BROKER", kafka_bootstrap), name)
            system.asked("c", lambda client, d=document: client.apply(d) or None)  # type: ignore[misc]
        for name in FORMATS:
            system.asked("c", partial(holds, source=name, count=20))
        owners = dict(zip(FORMATS, until(lambda: apart(system), system.logs), strict=True))
        binding = system.asked("c", minter)
        gone = system.members[owners[binding]]
        gone.killed()
        asyncio.run(append(kafka_bootstrap, topic, range(20, 60)))
        for name in FORMATS:
            system.asked("c", partial(holds, source=name, count=60))
        assert not gone.running
        with Client(system.address("c")) as client:
            whole = client.since_when("rows", dict.fromkeys(range(3), 20), timeout_s=60).as_of
            first = client.since_when("rows", {0: 1}, timeout_s=60).as_of
            seen = set()
            for at in {*range(first, whole, max(1, (whole - first) // 40)), whole}:
                there = numbers(client, "rows", at)
                assert numbers(client, "lines", at) == there
                seen.add(len(there))
            assert seen > {60}, "all came at one instant: nothing was compared"
            with pytest.raises(NotYet):
                client.since_when("lines", {0: 21})
