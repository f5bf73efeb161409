"""Effects of actions: the identities of the events in each target."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, cast

from redis.asyncio import Redis

from tidemill.testkit.service_faults.cluster import ALARMS, Cluster
from tidemill.testkit.service_faults.oracle import Topic
from tidemill.testkit.service_faults.outcome import Outcome

TARGETS = ("tell-file", "tell-topic", "tell-redis", "tell-http")


async def effects(cluster: Cluster, alarms: Topic) -> dict[str, Counter[int]]:
    """Number of effects of each event, in each target."""
    await alarms.catch_up()
    file = cluster.folder / "alarms.jsonl"
    lines = file.read_bytes().splitlines() if file.exists() else []
    client = Redis.from_url(cluster.redis.address)
    try:
        entries = await cast("Any", client.xrange(ALARMS))
    finally:
        await client.aclose()
    return {
        "tell-file": Counter(map(_event, lines)),
        "tell-topic": Counter(map(_event, alarms.records[0].values())),
        "tell-redis": Counter(_event(entry[b"body"]) for _, entry in entries),
        "tell-http": Counter(map(_event, cluster.endpoints.done.values())),
    }


def _event(line: bytes) -> int:
    arguments = json.loads(line)["arguments"]
    found = json.loads(arguments) if isinstance(arguments, str) else arguments
    return int(found[1])


def check_effects(
    found: dict[str, Counter[int]], wanted: Counter[int], outcome: Outcome, *, all_done: bool
) -> None:
    """Nothing twice and nothing that is not wanted; at the end also everything that is."""
    for target, events in found.items():
        twice = [event for event, count in events.items() if count > 1]
        outcome.expect(not twice, f"{target} did {len(twice)} events twice, such as {twice[:3]}")
        strange = sorted(events.keys() - wanted.keys())
        outcome.expect(
            not strange, f"{target} did {len(strange)} that are no alarms: {strange[:3]}"
        )
        missing = sorted(wanted.keys() - events.keys())
        outcome.happened[f"effects of {target}"] = events.total()
        if all_done:
            outcome.expect(
                not missing, f"{target} did not do {len(missing)}, such as {missing[:3]}"
            )
