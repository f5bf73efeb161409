"""A Redis that is empty one day: the process that knows better writes nothing, and says so."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import redis

from tidemill.errors import Unavailable
from tidemill.host.settings import StoreSettings
from tidemill.rpc.messages import ResourceDocument
from tidemill.testkit.servers import redis_server
from tidemill.testkit.whole import Whole, opened
from tidemill_server.settings import ServerSettings

pytestmark = pytest.mark.server

TABLE = """
apiVersion: tidemill.dev/v1alpha1
kind: Table
metadata: {name: NAME}
spec: {columns: [{name: k, type: int}]}
"""
WAIT_S = 240


async def test_a_process_on_an_empty_redis_writes_nothing_until_its_own_is_back(
    tmp_path: Path,
) -> None:
    with redis_server("lost") as server:
        admin = redis.Redis.from_url(server.address)
        store = StoreSettings(consensus=server.address)
        settings = ServerSettings(directory=str(tmp_path / "state"), store=store)
        async with opened(settings) as process:
            await process.start()
            await process.apply(TABLE.replace("NAME", "t"))
            at = await process.insert("t", {"k": 1})
            assert await process.answer("t", at) == [(1,)]
            admin.execute_command("SWAPDB", 0, 1)  # type: ignore[no-untyped-call]
            assert admin.dbsize() == 0, "the server behind the address is an empty one"
            for ask in asked(process):
                with pytest.raises(Unavailable, match="has lost version"):
                    await ask()
            assert admin.dbsize() == 0
            admin.execute_command("SWAPDB", 0, 1)  # type: ignore[no-untyped-call]
            at = await until_inserted(process)
            assert await process.answer("t", at) == [(1,), (3,)]
        admin.close()


def asked(process: Whole) -> list[Callable[[], Awaitable[object]]]:
    """A write, a read, and commands to the catalog."""
    documents = [ResourceDocument(TABLE.replace("NAME", "u"), "test.yaml")]
    return [
        lambda: process.insert("t", {"k": 2}),
        lambda: process.query.snapshot("t", None, 5.0),
        lambda: process.controller.apply(documents),
        lambda: process.controller.delete("table", "t"),
    ]


async def until_inserted(process: Whole) -> int:
    """The time of a row that is inserted once the store has what it had."""
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                return await process.insert("t", {"k": 3})
            except Unavailable:
                await asyncio.sleep(0.1)
