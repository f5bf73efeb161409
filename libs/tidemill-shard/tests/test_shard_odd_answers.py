"""Stores that answer garbage: each call ends with an error of ours, or with the right answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from tidemill.errors import Indeterminate, Unavailable, UsageError
from tidemill.shard import Version
from tidemill.shard.blob_objects import Bucket, ObjectBlob, bucket_blob
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


async def test_answers_behind_one_that_is_none_are_not_those_of_the_next_question() -> None:
    """Of many questions in one exchange; the answers that were left were those of the next ones."""
    foreign = b"*1\r\n*2\r\n" + bulk("9-1") + b"*2\r\n" + bulk("d", "of another collection")
    for wrong in ("an entry without its field", "a number", "out of memory"):
        async with odd_redis() as redis:
            store = RedisConsensus(redis.url, timeout_s=5)
            redis.in_turn["XREVRANGE"] = [NOT_ANSWERS[wrong], foreign]
            heads = await store.heads(["a", "b"])
            assert heads == [None, Version(9, b"of another collection")], wrong
            assert not redis.in_turn["XREVRANGE"]  # the companion: both were asked for
            assert await store.head("c") == HELD, wrong
            await store.close()


async def test_a_script_that_redis_has_forgotten_is_sent_again() -> None:
    async with odd_redis() as redis:
        store = RedisConsensus(redis.url, timeout_s=5)
        redis.instead["EVALSHA"] = b"-NOSCRIPT No matching script. Please use EVAL.\r\n"
        assert await store.compare_and_set("a", 5, NEXT)
        assert redis.asked[-2:] == ["EVALSHA", "EVAL"]
        await store.close()


def answer(body: bytes, status: str = "200 OK", head: str = "", length: int | None = None) -> bytes:
    """An answer of an object store, which may say another length than that of its body."""
    size = len(body) if length is None else length
    return (
        f"HTTP/1.1 {status}\r\nContent-Length: {size}\r\nConnection: close\r\n{head}"
        'ETag: "a"\r\nLast-Modified: Fri, 27 Nov 2026 10:00:00 GMT\r\n\r\n'
    ).encode() + body


def listing(key: str = "f/a", modified: str = "2026-11-27T10:00:00Z", more: str = "") -> bytes:
    """A page of a listing with one object; `more` names the page that follows."""
    token = f"<NextContinuationToken>{more}</NextContinuationToken>" if more else ""
    return answer(
        (
            f"<ListBucketResult><Name>b</Name><KeyCount>1</KeyCount>"
            f"<IsTruncated>{str(bool(more)).lower()}</IsTruncated>{token}<Contents><Key>{key}</Key>"
            f'<LastModified>{modified}</LastModified><ETag>"x"</ETag><Size>1</Size></Contents>'
            "</ListBucketResult>"
        ).encode()
    )


@asynccontextmanager
async def odd_bucket(*answers: bytes) -> AsyncIterator[tuple[ObjectBlob, list[bytes]]]:
    """A store that gives one answer after the other, the last one for ever; and what it was
    asked.
    """
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            asked.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(answers[min(len(asked), len(answers)) - 1])
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    bucket = Bucket("b", f"http://{host}:{port}", "us-east-1", "key", "secret")
    try:
        yield bucket_blob(bucket, timeout_s=20), asked
    finally:
        server.close()


async def test_a_listing_without_an_end_is_given_up() -> None:
    async with odd_bucket(listing(more="on")) as (blob, asked):
        with pytest.raises(Unavailable, match="lists f/a again and again"):
            await blob.list("f/")
        assert len(asked) > 1
    async with odd_bucket(listing(more="on"), listing("f/b")) as (blob, asked):
        assert [entry.key for entry in await blob.list("f/")] == ["f/a", "f/b"]


@pytest.mark.parametrize("modified", ["-9999-01-01T00:00:00Z", "+262142-12-31T23:59:59Z", "now"])
async def test_a_listing_of_impossible_instants_is_none(modified: str) -> None:
    async with odd_bucket(listing(modified=modified)) as (blob, asked):
        with pytest.raises(Unavailable):
            await blob.list("f/")
        assert asked


NO_PAGES = {
    "an error": b"<Error><Code>InternalError</Code><Message>We encountered one</Message></Error>",
    "a page for people": b"<html><body><p>please log in</p></body></html>",
    "nothing": b"",
    "another answer": b"<ListAllMyBucketsResult><Buckets/></ListAllMyBucketsResult>",
}


@pytest.mark.parametrize("body", NO_PAGES)
async def test_who_answers_everything_with_200_is_no_empty_store(body: str) -> None:
    """A proxy that asks for a login, say. Each of these was an empty listing."""
    async with odd_bucket(answer(NO_PAGES[body])) as (blob, asked):
        for prefix in ("f/", ""):
            with pytest.raises(Unavailable):
                await blob.list(prefix)
        assert asked


async def test_a_store_with_nothing_under_a_prefix_lists_nothing() -> None:
    none = b"<Error><Code>NoSuchKey</Code><Message>it is not there</Message></Error>"
    empty = answer(b"<ListBucketResult><KeyCount>0</KeyCount></ListBucketResult>")
    async with odd_bucket(empty, answer(none, "404 Not Found")) as (blob, asked):
        assert list(await blob.list("f/")) == []
        assert len(asked) == 2
        assert asked[1].startswith(b"GET /b/f/absent ")


async def test_an_object_of_impossible_size_is_not_read() -> None:
    async with odd_bucket(answer(b"x", length=1 << 40)) as (blob, asked):
        with pytest.raises(Unavailable, match="has 1099511627776 bytes"):
            await blob.get("f/a")
        with pytest.raises(Unavailable, match="has 1099511627776 bytes"):
            await asyncio.to_thread(blob.get_now, "f/a")
        assert len(asked) == 2


ODD_OBJECTS = {
    "no HTTP": b"\xff\xfe\x00garbage\r\n\r\n",
    "cut short": answer(b"hel", length=5),
    "to a file": answer(b"", "307 Temporary Redirect", "Location: file:///etc/passwd\r\n"),
    "to itself": answer(b"", "307 Temporary Redirect", "Location: /b/f/a\r\n"),
    "a part of another place": answer(b"he", "206 Partial", "Content-Range: bytes 3-4/5\r\n"),
    "a part that ends before": answer(b"he", "206 Partial", "Content-Range: bytes 9-1/5\r\n"),
    "headers without end": b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20_000 + b"\r\n",
    "refused": answer(b"", "403 Forbidden"),
}


@pytest.mark.parametrize("odd", ODD_OBJECTS)
async def test_an_answer_that_is_no_piece_of_an_object_is_unavailable(odd: str) -> None:
    async with odd_bucket(ODD_OBJECTS[odd]) as (blob, asked):
        with pytest.raises(Unavailable):
            await blob.get_range("f/a", 0, 5)
        assert asked
