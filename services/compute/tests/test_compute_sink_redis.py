"""A Redis that answers garbage, or more than any answer has, is a sink that is unavailable."""

from __future__ import annotations

import pytest

from tidemill.errors import Fenced, Unavailable
from tidemill.testkit.redis_answers import NOT_ANSWERS, bulk, odd_redis
from tidemill_compute.actions.outbox import Firing
from tidemill_compute.actions.sink_redis import ANSWER_BYTES_MAX, RedisSink

FIRING = Firing("k", "calls", 1, "p()", "[]", None)
ONE = b":1\r\n"
NONE_OF_A_NUMBER = {**NOT_ANSWERS, "no number": b"$1\r\n0\r\n"}
NONE_OF_A_NUMBER.pop("a number")

TOO_MUCH = {
    "a text": b"$99999999999\r\n" + b"x" * 4_096,
    "a list": b"*1000000\r\n" + b":1\r\n" * (ANSWER_BYTES_MAX // 4),
    "a list of lists": b"*1\r\n" * 100 + bulk(b"x" * ANSWER_BYTES_MAX),
}


async def test_s8_an_answer_that_is_none_fires_nothing() -> None:
    for wrong, answer in NONE_OF_A_NUMBER.items():
        async with odd_redis() as redis:
            redis.instead |= {"EVALSHA": answer, "EVAL": answer}
            sink = RedisSink(redis.url, "stream", "calls")
            await sink.recover(())
            with pytest.raises(Unavailable):
                await sink.fire([FIRING])
            assert "EVALSHA" in redis.asked, wrong
            redis.instead.clear()
            with pytest.raises(Fenced):  # it says that another fence is the newest
                await sink.fire([FIRING])
            redis.instead["EVALSHA"] = b":0\r\n"
            await sink.fire([FIRING])


async def test_s8_a_recovery_takes_garbage_for_no_fence() -> None:
    for wrong, answer in NONE_OF_A_NUMBER.items():
        async with odd_redis() as redis:
            redis.instead["HINCRBY"] = answer
            with pytest.raises(Unavailable):
                await RedisSink(redis.url, "stream", "calls").recover(())
            assert "HINCRBY" in redis.asked, wrong


@pytest.mark.parametrize("what", TOO_MUCH)
async def test_s8_an_answer_without_an_end_is_not_read(what: str) -> None:
    async with odd_redis() as redis:
        redis.instead["HMGET"] = TOO_MUCH[what]
        sink = RedisSink(redis.url, "stream", "calls")
        with pytest.raises(Unavailable, match="longer than a sink reads"):
            await sink.recover([FIRING])
        redis.instead["HMGET"] = b"*1\r\n" + bulk("1")
        assert await sink.recover([FIRING]) == {"k"}
