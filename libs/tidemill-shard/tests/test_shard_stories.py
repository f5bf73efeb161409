"""One collection through its life: commands and answers in stories/*.txt.

REWRITE=1 in the environment writes the answers anew, to be reviewed as a difference.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest

from tidemill.errors import TidemillError
from tidemill.runtime.clock import ManualClock
from tidemill.shard import (
    Appended,
    Collections,
    Description,
    Limits,
    MemoryBlob,
    MemoryConsensus,
    ReadCapability,
    Subscription,
)
from tidemill.shard.appending import Merged, apply_merge
from tidemill.shard.compaction import Merge, plan_all
from tidemill.testkit.scripts import read_story, retold, write_story
from tidemill.time import Frontier, frontier

STORIES = sorted((Path(__file__).parent / "stories").glob("*.txt"))
ROWS = pa.schema([("row", pa.string())])
NAME = "c"
LEASE_MS = 60_000


class Teller:
    """Carries out the commands of a story on one collection in memory."""

    def __init__(self) -> None:
        self.clock = ManualClock(1_000_000)
        self.consensus = MemoryConsensus()
        self.blob = MemoryBlob(self.clock.now_ms)
        self.names = count()
        self.store = self.opened()
        self.readers: dict[str, ReadCapability] = {}
        self.listeners: dict[str, Subscription] = {}
        self.merges: dict[str, Merge] = {}

    def opened(self) -> Collections:
        return Collections(
            self.consensus, self.blob, self.clock, lambda: f"{next(self.names):04}",
            limits=Limits(inline_bytes_max=0),
        )  # fmt: skip

    async def answer(self, words: Sequence[str]) -> str:
        """The answer of a command: a value, or an error by its name."""
        verb, *rest = words
        try:
            return str(await getattr(self, f"on_{verb.replace('-', '_')}")(*rest))
        except TidemillError as error:
            reason = error.details.get("reason")
            return f"{type(error).__name__}{f' {reason}' if reason else ''}: {error}"

    async def on_create(self, start: str = "0", retain_ms: str = "") -> str:
        description = Description(ROWS, retain_ms=int(retain_ms) if retain_ms else None)
        read, _ = await self.store.create(NAME, description, start=frontier(int(start)))
        await self.store.drop(read)
        return await self.on_frontiers()

    async def on_register(self, reader: str, lease_ms: str = str(LEASE_MS)) -> str:
        held = await self.store.read_hold(NAME, owner=reader, lease_ms=int(lease_ms))
        self.readers[reader] = held
        return f"holds {held.frontier}"

    async def on_downgrade(self, reader: str, to: str) -> str:
        self.readers[reader] = await self.store.downgrade(self.readers[reader], bound(to))
        return await self.on_frontiers()

    async def on_drop(self, reader: str) -> str:
        await self.store.drop(self.readers[reader])
        return await self.on_frontiers()

    async def on_renew(self, reader: str) -> str:
        await self.store.renew(self.readers[reader])
        return "renewed"

    async def on_append(self, writer: str, lower: str, upper: str, *rest: str) -> str:
        token = next((word.removeprefix("token=") for word in rest if "=" in word), None)
        rows = [row_of(word) for word in rest if "=" not in word]
        table = pa.Table.from_pylist(rows, Description(ROWS).update_schema()) if rows else None
        before = (await self.store.status(NAME)).version
        outcome = await self.store.compare_and_append(
            NAME, bound(lower), bound(upper), table, writer=writer, token=token
        )
        made = (await self.store.status(NAME)).version - before
        if isinstance(outcome, Appended):
            return f"appended {outcome.upper}{'' if made else ', nothing new'}"
        return f"mismatch {outcome.current}"

    async def on_snapshot(self, reader: str, at: str) -> str:
        table = await self.store.snapshot(self.readers[reader], int(at))
        rows = sorted((row["row"], row["_diff"]) for row in table.to_pylist())
        return " ".join(f"{row}:{diff}" for row, diff in rows) or "nothing"

    async def on_stored(self) -> str:
        table = await self.store.read_updates(NAME)
        return " ".join(sorted(f"{r['row']}@{r['_time']}:{r['_diff']}" for r in table.to_pylist()))

    async def on_listen(self, name: str, reader: str, at: str, snapshot: str = "") -> str:
        await self.store.check_subscription(self.readers[reader], int(at))
        self.listeners[name] = self.store.subscription(
            self.readers[reader], int(at), snapshot=snapshot != "later"
        )
        return "listening"

    async def on_poll(self, name: str) -> str:
        table, upper = await self.listeners[name].poll()
        rows = sorted(f"{r['row']}@{r['_time']}:{r['_diff']}" for r in table.to_pylist())
        return f"{' '.join(rows) or 'nothing'} until {upper}"

    async def on_retain(self, retain_ms: str) -> str:
        await self.store.retain(NAME, None if retain_ms == "all" else int(retain_ms))
        return await self.on_frontiers()

    async def on_close(self) -> str:
        await self.store.close_collection(NAME)
        return await self.on_frontiers()

    async def on_wait(self, seconds: str) -> str:
        self.clock.move(float(seconds))
        return await self.on_frontiers()

    async def on_restart(self) -> str:
        self.store = self.opened()
        for listener in self.listeners.values():
            listener.attach(self.store)
        return await self.on_frontiers()

    async def on_frontiers(self) -> str:
        status = await self.store.status(NAME)
        return f"since {status.since} upper {status.upper}"

    async def on_batches(self) -> str:
        state = await self.store.state(NAME)
        lines = []
        for batch in state.batches:
            spans = " ".join(f"{part.time_min}–{part.time_max}" for part in batch.parts)
            lines.append(
                f"from {batch.lower}: {batch.rows} updates" + (f" at {spans}" if spans else "")
            )
        return "\n".join(lines) or "none"

    async def on_compact(self) -> str:
        await self.store.compact(NAME)
        return await self.on_batches()

    async def on_merge(self, name: str) -> str:
        """Merge everything there is by now, without putting it in place."""
        state = await self.store.state(NAME)
        chosen = plan_all(state)
        inputs = tuple(part for batch in chosen for part in batch.parts)
        merge = Merge(NAME, state, chosen, inputs)
        while not merge.done:
            await merge.step(self.store._core.parts)
        self.merges[name] = merge
        return f"merged {len(merge.chosen)} batches into {merge.result().batch.rows} updates"

    async def on_apply(self, name: str) -> str:
        result: Merged = self.merges[name].result()
        taken = await self.store._core.versions.commit(
            NAME, lambda state: apply_merge(state, result, self.clock.now_ms())
        )
        return "taken" if taken else "too late"

    async def on_collect(self, grace_s: str = "0") -> str:
        deleted = await self.store.collect_garbage(NAME, int(float(grace_s) * 1000))
        return f"deleted {deleted}"

    async def on_reap(self, age_s: str) -> str:
        return f"deleted {await self.store.reap_orphans(NAME, int(float(age_s) * 1000))}"

    async def on_lose(self, kind: str) -> str:
        """An object of Blob vanishes."""
        key = next(entry.key for entry in await self.blob.list("") if f"/{kind}-" in entry.key)
        await self.blob.delete(key)
        return "lost"

    async def on_leave(self, name: str) -> str:
        """A writer dies between its object and its version."""
        folder = (await self.blob.list(""))[0].key.split("/")[0]
        await self.blob.put(f"{folder}/part-{name}", b"never named")
        return "left"

    async def on_objects(self) -> str:
        keys = [entry.key.split("/")[1].split("-")[0] for entry in await self.blob.list("")]
        return ", ".join(f"{keys.count(kind)} {kind}" for kind in sorted(set(keys))) or "none"

    async def on_log(self) -> str:
        versions = [version.number for version in await self.consensus.scan(NAME, 0)]
        return f"versions {versions[0]}–{versions[-1]}"

    async def on_heartbeats(self, writer: str, lower: str, upper: str) -> str:
        for time in range(int(lower), int(upper)):
            await self.on_append(writer, str(time), str(time + 1))
        return await self.on_frontiers()


def bound(word: str) -> Frontier:
    """A frontier: a time, or `end` for the empty one."""
    return frontier() if word == "end" else frontier(int(word))


def row_of(word: str) -> dict[str, object]:
    """`row@time` or `row@time:diff` as an update."""
    row, _, rest = word.partition("@")
    time, _, diff = rest.partition(":")
    return {"row": row, "_time": int(time), "_diff": int(diff or 1)}


@pytest.mark.parametrize("file", STORIES, ids=lambda file: file.stem)
def test_a_story_goes_as_it_is_told(file: Path) -> None:
    told = file.read_text()
    found = asyncio.run(retold(told, Teller().answer))
    if os.environ.get("REWRITE"):
        file.write_text(found)
    else:
        assert found == told


def test_a_story_that_went_otherwise_is_noticed() -> None:
    text = "# A start.\n\n> create 3\nsince [3] upper [3]\n\n> frontiers\nsince [3] upper [4]\n"
    assert write_story(read_story(text)) == text
    assert asyncio.run(retold(text, Teller().answer)) == text.replace("[4]", "[3]")
