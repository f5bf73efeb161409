"""Stores that answer garbage: each call ends with an error of ours, or with the right answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from tidemill.errors import Indeterminate, Unavailable, UsageError
from tidemill.shard import Version
from tidemill.shard.consensus_redis import RedisConsensus
from tidemill.testkit.redis_answers import NOT_ANSWERS, bulk, odd_redis

HELD = Version(5, b"x")
NEXT = Version(6, b"y")

READS: dict[str, Callable[[RedisConsensus], Awaitable[object]]] = {
    "XREVRANGE": lambda store: store.head("a"),
    "XRANGE": lambda store: store.scan("a", 5),
    "SMEMBERS": lambda store: store.keys(),
    "EXISTS": lambda store: store.keys(),
}
WRITES: dict[str, Callable[[RedisConsensus], Awaitable[object]]] = {
    "EVALSHA": lambda store: store.compare_and_set("a", 5, NEXT),
    "SADD": lambda store: store.compare_and_set("a", None, Version(0, b"x")),
}
SETTINGS = ("INFO", "CONFIG", "CLIENT")
FINE = {("EXISTS", "a number"), ("SADD", "a number")}
"""Answers that are some of a command after all."""


@pytest.mark.parametrize("command", [*READS, *WRITES])
async def test_an_answer_of_redis_that_is_none_is_no_answer(command: str) -> None:
    call = READS.get(command) or WRITES[command]
    refusals = (Unavailable,) if command in READS else (Unavailable, Indeterminate)
    for wrong, answer in NOT_ANSWERS.items():
        async with odd_redis() as redis:
            store = RedisConsensus(redis.url, timeout_s=5)
            redis.instead[command] = answer
            if (command, wrong) in FINE:
                await call(store)
            else:
                with pytest.raises(refusals):
                    await call(store)
            assert command in redis.asked, wrong
            redis.instead.clear()
            assert await store.head("a") == HELD, wrong
            assert await store.compare_and_set("a", 5, NEXT), wrong
            await store.close()


@pytest.mark.parametrize("command", SETTINGS)
async def test_a_redis_whose_settings_are_garbage_is_not_used(command: str) -> None:
    for wrong, answer in NOT_ANSWERS.items():
        async with odd_redis() as redis:
            store = RedisConsensus(redis.url, timeout_s=5)
            redis.instead[command] = answer
            try:
                assert await store.head("a") == HELD
            except (Unavailable, UsageError):
                pass
            else:
                assert command == "CLIENT", "it goes on without the name of the client alone"
            redis.instead.clear()
            assert await store.head("a") == HELD, wrong
            await store.close()


async def test_an_answer_too_many_is_not_that_of_the_next_question() -> None:
    foreign = b"*1\r\n*2\r\n" + bulk("9-1") + b"*2\r\n" + bulk("d", "of another collection")
    async with odd_redis() as redis:
        store = RedisConsensus(redis.url, timeout_s=5)
        redis.instead["XREVRANGE"] = foreign + foreign
        assert await store.head("a") == Version(9, b"of another collection")
        redis.instead.clear()
        assert await store.head("b") == HELD
        await store.close()


async def test_a_script_that_redis_has_forgotten_is_sent_again() -> None:
    async with odd_redis() as redis:
        store = RedisConsensus(redis.url, timeout_s=5)
        redis.instead["EVALSHA"] = b"-NOSCRIPT No matching script. Please use EVAL.\r\n"
        assert await store.compare_and_set("a", 5, NEXT)
        assert redis.asked[-2:] == ["EVALSHA", "EVAL"]
        await store.close()
