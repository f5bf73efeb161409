"""Views by command: over held collections, kept like those of documents, ended by capability."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from tidemill.errors import (
    AlreadyUsed,
    BeforeSince,
    TidemillError,
    UnknownCapability,
    UnknownCollection,
    UsageError,
)
from tidemill.rpc.messages import (
    AppendOutcome,
    CapabilityPair,
    Changes,
    CollectionShape,
    HeldCapability,
    MaintainedView,
    ResourceDocument,
)
from tidemill.testkit.whole import Whole, opened
from tidemill.time import frontier
from tidemill_server.settings import ServerSettings

SHAPE = CollectionShape(
    pa.schema([("h", pa.string()), ("w", pa.int64())]), timeline="scale", user_writable=True
)
PROGRAM = "heavy(h) := weights(h, w) if w > 10;\nboth(h) := weights(h, w) ^ limits(h, l) if w > l;"
TOKEN = "a-token-nobody-guesses"
BY_DOCUMENT = """
apiVersion: tidemill.dev/v1alpha1
kind: View
metadata: {name: over}
spec: {retain: all, program: "again(h) := heavy(h);"}
"""


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Whole]:
    async with opened(ServerSettings(directory=str(folder / "state"))) as process:
        await process.start()
        yield process


async def create(process: Whole, name: str, *, at: int = 0) -> CapabilityPair:
    return await process.storage.create(name, SHAPE, frontier(at), "me", None)


async def write(
    process: Whole, pair: CapabilityPair, held: int, to: int, *rows: tuple[str, int]
) -> AppendOutcome:
    assert pair.write is not None
    table = pa.table(
        {
            "h": pa.array([h for h, _ in rows], pa.string()),
            "w": pa.array([w for _, w in rows], pa.int64()),
            "_time": pa.array([held] * len(rows), pa.uint64()),
            "_diff": pa.array([1] * len(rows), pa.int64()),
        }
    )
    writer = replace(pair.write, frontier=frontier(held))
    return await process.storage.update_and_downgrade(writer, table, frontier(to), None)


async def rows(process: Whole, held: HeldCapability, at: int) -> list[str]:
    events = process.storage.subscribe_at(held, at, True, at + 1)
    tables = [event.table async for event in events if isinstance(event, Changes)]
    return sorted(h for table in tables for h in table.column(0).to_pylist())


async def both(process: Whole) -> tuple[CapabilityPair, CapabilityPair, MaintainedView]:
    """Two collections with rows, and a view over what is held of them."""
    weights, limits = await create(process, "weights"), await create(process, "limits", at=3)
    await write(process, weights, 0, 10, ("a", 5), ("b", 50))
    await write(process, limits, 3, 8, ("a", 1), ("b", 90))
    held = {"weights": weights.read, "limits": limits.read}
    return weights, limits, MaintainedView("joined", PROGRAM, held, retain_ms=None)


@pytest.mark.rule("MV1", "MV2", "MV3", "MV5", "MV6", "D2")
async def test_v13_a_view_over_what_is_held_is_maintained_as_one_by_document(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as process:
        weights, limits, view = await both(process)
        outputs = await process.maintaining.maintain_view(view)
        assert sorted(outputs) == ["both", "heavy"]
        # All begin at the common frontier of the inputs, which the view holds by itself from then
        # on.
        assert {each.frontier for each in outputs.values()} == {frontier(3)}
        await process.storage.drop(weights.read)
        await process.storage.drop(limits.read)
        assert await rows(process, outputs["both"], 7) == ["a"]
        await write(process, weights, 10, 20, ("c", 99))
        await write(process, limits, 8, 20, ("c", 9))
        assert await rows(process, outputs["heavy"], 15) == ["b", "c"]
        assert await rows(process, outputs["both"], 15) == ["a", "c"]
        await process.controller.apply([ResourceDocument(BY_DOCUMENT, "over.yaml")])
        said = await process.query.ask("again(h)", 15, 60.0)
        assert sorted(said.table.column(0).to_pylist()) == ["b", "c"]
        for name in ("weights", "limits"):
            since = (await process.context.collections.status(name)).since
            assert since.precedes((await process.context.collections.status("joined/both")).since)
    async with running(tmp_path) as process:  # durable on return, and so are the capabilities
        await write(process, weights, 20, 30, ("d", 70))
        await write(process, limits, 20, 30)
        assert await rows(process, outputs["heavy"], 25) == ["b", "c", "d"]
        with pytest.raises(UsageError, match="View/over"):
            await process.maintaining.drop_view(outputs["heavy"])
        await process.controller.delete("View", "over")
        await process.maintaining.drop_view(outputs["heavy"])
        assert await process.controller.get("View", None) == []
        with pytest.raises(UnknownCollection):
            await process.query.ask("joined/both(h)", 15, None)
        assert "view:joined" not in {
            h.owner for h in (await process.context.collections.status("weights")).holders
        }
        # A holder of an output keeps reading what it held, and the last holder leaves a tombstone.
        assert await rows(process, outputs["both"], 15) == ["a", "c"]
        await process.storage.drop(outputs["both"])
        assert (await process.context.collections.status("joined/both")).closed


@pytest.mark.rule("MV1", "MV2", "K4", "L4")
async def test_v13_what_does_not_fit_begins_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as process:
        weights, _, view = await both(process)
        maintain = process.maintaining.maintain_view
        other = replace(weights.read, frontier=frontier(1))
        assert weights.write is not None
        refused: list[tuple[type[TidemillError], str, MaintainedView]] = [
            (BeforeSince, "the input limits is held from", replace(view, at=frontier(2))),
            (UsageError, "it states", replace(view, inputs={**view.inputs, "weights": other})),
            (UsageError, "neither reads", replace(view, inputs={"weights": weights.write})),
            (UsageError, "limits: present", replace(view, inputs={"weights": weights.read})),
            (UsageError, "no inputs", replace(view, inputs={})),
            (UsageError, "mistakes", replace(view, program="heavy(h) := weights(h);")),
            (UsageError, r"limits\.program_bytes", replace(view, program="#" * 70_000)),
            (UsageError, "not derived", replace(view, outputs=("heavy", "none"))),
        ]
        for kind, said, each in refused:
            with pytest.raises(kind, match=said):
                await maintain(each)
        dropped = await process.storage.clone(weights.read)
        await process.storage.drop(dropped)
        with pytest.raises(UnknownCapability):
            await maintain(replace(view, inputs={**view.inputs, "weights": dropped}))
        assert await process.controller.get(None, None) == []
        ids = await process.context.collections.ids()
        assert not [name for name in ids if name.startswith("joined")]
        outputs = await maintain(replace(view, outputs=("heavy",)))
        assert sorted(outputs) == ["heavy"]
        with pytest.raises(AlreadyUsed):
            await maintain(view)
        await process.controller.apply([ResourceDocument(BY_DOCUMENT, "over.yaml")])
        by_document = await process.storage.acquire("over/again", "me", None)
        with pytest.raises(UsageError, match="begun by command"):
            await process.maintaining.drop_view(by_document.read)


@pytest.mark.rule("MV1", "D2")
async def test_v13_a_view_whose_answer_was_lost_is_answered_again(tmp_path: Path) -> None:
    async with running(tmp_path) as process:
        _, _, view = await both(process)
        await process.maintaining.maintain_view(view, TOKEN)  # nobody hears of it
    async with running(tmp_path) as process:
        twice = [await process.maintaining.maintain_view(view, TOKEN) for _ in range(2)]
        assert twice[0] == twice[1]
        assert await rows(process, twice[0]["heavy"], 7) == ["b"]
        with pytest.raises(AlreadyUsed):
            await process.maintaining.maintain_view(view, TOKEN + "!")
        with pytest.raises(UsageError, match="can be guessed"):
            await process.maintaining.maintain_view(replace(view, name="more"), "short")
        held = (await process.context.collections.status("joined/heavy")).holders
        assert len(held) == 1
