"""Consensus in Redis: refuses servers that forget, and loses nothing when one is killed."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from secrets import token_hex

import pyarrow as pa
import pytest
import redis

from tidemill.errors import Indeterminate, Unavailable, UsageError
from tidemill.runtime.clock import SystemClock
from tidemill.shard import Appended, Collections, Description, MemoryBlob, Version
from tidemill.shard.consensus_redis import RedisConsensus, _shown, await_uncancelled
from tidemill.testkit.servers import redis_server
from tidemill.time import frontier

pytestmark = pytest.mark.server
ROWS = pa.schema([("n", pa.int64())])
STAGES = ("in_progress", "scheduled")


@pytest.mark.rule("S4", "D1")
async def test_a_server_with_any_weaker_setting_is_refused_by_name() -> None:
    with redis_server("durability") as server:
        admin = redis.Redis.from_url(server.address)
        store = RedisConsensus(server.address)
        assert await store.compare_and_set("a", None, Version(0, b"x"))
        assert store.risks == ()
        await store.close()
        for setting, weak, strong in (
            ("appendfsync", "everysec", "always"),
            ("appendonly", "no", "yes"),
            ("no-appendfsync-on-rewrite", "yes", "no"),
            ("maxmemory", "100mb", "0"),
        ):
            admin.config_set(setting, weak)
            if setting == "maxmemory":
                admin.config_set("maxmemory-policy", "allkeys-lru")
            refused = RedisConsensus(server.address)
            with pytest.raises(UsageError, match=setting) as error:
                await refused.head("a")
            assert error.value.details["reason"] == "NotDurable"
            await refused.close()
            told = RedisConsensus(server.address, allow_non_durable=True)
            assert await told.head("a") == Version(0, b"x")
            assert setting in told.risks[0]
            await told.close()
            admin.config_set(setting, strong)
        # A server that is about to write its first file does not stop before it is whole.
        while any(admin.info("persistence")[f"aof_rewrite_{stage}"] for stage in STAGES):
            await asyncio.sleep(0.01)
        admin.close()


def test_an_address_is_shown_without_its_password() -> None:
    assert _shown("redis://user:secret@host:6379/0") == "host:6379/0"
    assert _shown("redis://host:6379/0") == "host:6379/0"


@pytest.mark.rule("P4", "P5", "S3")
async def test_what_was_acknowledged_survives_a_killed_server() -> None:
    with redis_server("killed") as server:
        blob = MemoryBlob()
        port = server.address.rsplit(":", 1)[1].split("/")[0]

        def opened() -> Collections:
            consensus = RedisConsensus(server.address, timeout_s=2)
            return Collections(consensus, blob, SystemClock(), lambda: token_hex(16))

        store = opened()
        await store.create("t", Description(ROWS), lease_ms=None)
        acknowledged, enough = 0, asyncio.Event()
        for kills in range(3):
            told, killing = acknowledged, asyncio.create_task(kill_after(server, enough))
            while not killing.done():
                try:
                    outcome = await append(store, acknowledged)
                except (Unavailable, Indeterminate):
                    continue
                assert outcome == Appended(frontier(acknowledged + 1))
                acknowledged += 1
                if acknowledged == told + 5 * (kills + 1):
                    enough.set()  # killed while more is asked for
            await killing
            enough.clear()
            await asyncio.to_thread(server.control, "up", "--port", port)
            await until_answered(store, acknowledged)
            acknowledged += 1
        read = await store.read_hold("t", owner="audit")
        rows = await store.snapshot(read, acknowledged - 1)
        assert sorted(rows["n"].to_pylist()) == list(range(acknowledged))
        assert set(rows["_diff"].to_pylist()) == {1}
        await store.close()


async def kill_after(server: object, enough: asyncio.Event) -> None:
    await enough.wait()
    await asyncio.to_thread(server.control, "kill")  # type: ignore[attr-defined]  # a Server


async def until_answered(store: Collections, step: int) -> None:
    """Retry an append, whose first try may have been lost, until the server is back."""
    async with asyncio.timeout(120):
        while True:
            try:
                assert await append(store, step) == Appended(frontier(step + 1))
            except (Unavailable, Indeterminate):
                await asyncio.sleep(0.05)
                continue
            return


async def append(store: Collections, step: int) -> object:
    table = pa.table(
        {
            "n": [step],
            "_time": pa.array([step], pa.uint64()),
            "_diff": pa.array([1], pa.int64()),
        }
    )
    return await store.compare_and_append(
        "t", frontier(step), frontier(step + 1), table, writer="w", token=f"step {step}"
    )


async def test_a_server_that_is_not_there_is_unavailable() -> None:
    store = RedisConsensus("redis://127.0.0.1:1/0")
    with pytest.raises(Unavailable):
        await store.head("a")
    with pytest.raises(Unavailable):
        await store.compare_and_set("a", None, Version(0, b""))
    await store.close()


@pytest.mark.parametrize("ends", ["answer", "error"])
async def test_a_cancellation_that_the_client_forgets_is_not_forgotten(ends: str) -> None:
    asked = asyncio.Event()

    async def ask() -> str:
        """End as `asyncio.wait_for` may: the awaited result has come, or failed, at the same
        moment.
        """
        asked.set()
        with suppress(asyncio.CancelledError):
            await asyncio.get_running_loop().create_future()
        if ends == "error":
            raise Unavailable("the server is away")
        return "answer"

    # The fault is there: the task goes on as if nobody had cancelled it.
    forgetful = asyncio.create_task(ask())
    await asked.wait()
    forgetful.cancel()
    (outcome,) = await asyncio.gather(forgetful, return_exceptions=True)
    assert outcome == "answer" if ends == "answer" else isinstance(outcome, Unavailable)
    asked.clear()
    careful = asyncio.create_task(await_uncancelled(ask))
    await asked.wait()
    careful.cancel()
    with pytest.raises(asyncio.CancelledError):
        await careful
