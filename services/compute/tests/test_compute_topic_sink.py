"""A topic as a sink: one start of an action at a time appends to it, whichever process it is in."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from secrets import token_hex

import pytest

from tidemill.errors import Fenced
from tidemill.runtime.log import Entry, Log, unknown_topic
from tidemill.runtime.log_embedded import EmbeddedLog
from tidemill.runtime.log_kafka import KafkaLog
from tidemill_compute.actions.outbox import Firing, key_in
from tidemill_compute.actions.sink_log import LogSink


async def keys_in(log: Log, topic: str) -> Counter[str]:
    """Number of records of each key in a topic, for readers of committed ones."""
    bounds = await log.bounds(topic)
    reader = await log.reader(topic, {p: low for p, (low, _) in bounds.items()})
    found: Counter[str] = Counter()
    while any(reader.positions()[p] < high for p, (_, high) in bounds.items()):
        found.update(key_in(record.value or b"") for record in await reader.poll(1_000, 5.0))
    await reader.close()
    return found


@pytest.mark.server
@pytest.mark.parametrize("kind", ["embedded", "kafka"])
async def test_a_topic_refuses_whoever_was_replaced(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    firing, topic = Firing("k", "calls", 1, "p()", "[]", None), f"replaced-{token_hex(4)}"
    log: Log = (
        KafkaLog(request.getfixturevalue("kafka_bootstrap"))
        if kind == "kafka"
        else EmbeddedLog(tmp_path / "log")
    )
    paused, newer, other = (LogSink(log, topic, who) for who in ("calls", "calls", "other"))
    for sink in (paused, newer, other):
        await sink.recover(())
    with pytest.raises(Fenced):
        await paused.fire([firing])
    assert await keys_in(log, topic) == {}
    await newer.fire([firing])
    await other.fire([Firing("m", "other", 1, "p()", "[]", None)])
    assert await newer.recover([firing]) == {"k", "m"}
    assert await keys_in(log, topic) == {"k": 1, "m": 1}
    for sink in (paused, newer, other):
        await sink.close()
    await log.close()


class Leaderless(EmbeddedLog):
    """A log that has no leader for a topic at the first look: the topic is said to be unknown."""

    looks = 0

    async def bounds(self, topic: str) -> dict[int, tuple[int, int]]:
        self.looks += 1
        if self.looks == 1:
            raise unknown_topic(topic)
        return await super().bounds(topic)


@pytest.mark.parametrize("partitions", [1, 3])
async def test_a_topic_whose_leader_was_away_is_read_all_the_same(
    partitions: int, tmp_path: Path
) -> None:
    firing, log = Firing("k", "calls", 1, "p()", "[]", None), Leaderless(tmp_path / "log")
    await log.create_topic("told", partitions)
    await log.append("told", [Entry(b"k", firing.line.encode())])
    sink = LogSink(log, "told", "calls")
    assert await sink.recover([firing]) == {"k"}
    assert log.looks > 1
    await sink.close()
    await log.close()
