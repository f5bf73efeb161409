"""Collections that users have created are found by their names, although a first look failed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pyarrow as pa
import pytest
from structlog.testing import capture_logs

from tidemill.errors import Corrupt, Unavailable, UnknownCollection
from tidemill.host import context as host_context
from tidemill.shard import Description
from tidemill.shard.collections import Collections
from tidemill.testkit.whole import Whole, running
from tidemill.time import frontier

CREATED = Description(pa.schema([("n", pa.int64())]), created=True)


class Look:
    """Looks at the collection `mine` fail with `error`, as long as there is one; counts them."""

    def __init__(self, process: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
        self.error: BaseException | None = None
        self.looks = 0
        real = Collections.status

        async def status(collections: Collections, collection: str) -> object:
            if collection == "mine":
                self.looks += 1
                if self.error is not None:
                    raise self.error
            return await real(collections, collection)

        monkeypatch.setattr(type(process.context.collections), "status", status)


@pytest.mark.parametrize("error", [Unavailable("gone"), asyncio.CancelledError()])
async def test_a_collection_is_looked_at_again_after_a_look_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    async with running(tmp_path) as process:
        look = Look(process, monkeypatch)
        await process.context.collections.bind("mine", CREATED, frontier(0))
        look.error = error
        with pytest.raises(type(error)):
            await process.context.discover()
        assert not process.context.catalog.knows("mine")
        look.error = None
        await process.context.discover()
        assert process.context.catalog.named("mine").collection == "mine"


async def test_a_damaged_collection_is_logged_once_and_known_once_it_is_repaired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as process:
        look = Look(process, monkeypatch)
        await process.context.collections.bind("mine", CREATED, frontier(0))
        look.error = Corrupt("bytes that nobody wrote")
        with capture_logs() as told:
            await process.context.discover()
            await process.context.discover()
            assert look.looks == 1  # the next one is due in a minute
            monkeypatch.setattr(host_context, "DAMAGED_LOOK_S", 0.0)
            process.context.damaged["mine"] = 0.0
            await process.context.discover()
            assert look.looks == 2
        said = [each for each in told if each.get("collection") == "mine"]
        assert [each["event"] for each in said] == ["damaged"]
        look.error = None
        await process.context.discover()
        assert process.context.catalog.named("mine").collection == "mine"
        assert not process.context.damaged


async def test_a_question_for_a_name_that_nobody_has_looks_at_no_collection_that_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each such question looked at all that users had created: seconds of the event loop for two
    thousand.
    """
    async with running(tmp_path) as process:
        look = Look(process, monkeypatch)
        await process.context.collections.bind("mine", CREATED, frontier(0))
        for _ in range(3):
            with pytest.raises(UnknownCollection):
                await process.query.snapshot("nobodys", None, None)
        assert look.looks == 1
        assert process.context.catalog.knows("mine")
