"""The conformance kit of Blob: every law holds for every implementation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tidemill.shard.ports import Blob

OpenBlob = Callable[[], Blob]
Law = Callable[[OpenBlob], Awaitable[None]]

LAWS: list[Law] = []


def _law(law: Law) -> Law:
    LAWS.append(law)
    return law


@_law
async def an_object_comes_back_as_it_was(open_blob: OpenBlob) -> None:
    blob = open_blob()
    data = bytes(range(256)) * 5000
    await blob.put("folder/one", data)
    await blob.put("folder/empty", b"")
    assert await blob.get("folder/one") == data
    assert await blob.get("folder/empty") == b""
    await blob.close()


@_law
async def a_range_of_an_object_is_those_bytes(open_blob: OpenBlob) -> None:
    blob = open_blob()
    data = bytes(range(256)) * 40
    await blob.put("folder/one", data)
    for start, stop in ((0, 1), (0, len(data)), (300, 400), (len(data) - 5, len(data) + 100)):
        assert await blob.get_range("folder/one", start, stop) == data[start:stop]
    assert await blob.get_range("folder/none", 0, 10) is None
    await blob.close()


@_law
async def what_was_never_put_is_not_there(open_blob: OpenBlob) -> None:
    blob = open_blob()
    assert await blob.get("folder/none") is None
    await blob.delete("folder/none")
    assert list(await blob.list("")) == []
    await blob.close()


@_law
async def same_put_again_is_fine(open_blob: OpenBlob) -> None:
    blob = open_blob()
    await blob.put("a/x", b"same")
    await blob.put("a/x", b"same")
    assert await blob.get("a/x") == b"same"
    await blob.close()


@_law
async def a_deleted_object_is_gone(open_blob: OpenBlob) -> None:
    blob = open_blob()
    await blob.put("a/x", b"1")
    await blob.put("a/y", b"2")
    await blob.delete("a/x")
    assert await blob.get("a/x") is None
    assert [entry.key for entry in await blob.list("a/")] == ["a/y"]
    await blob.close()


@_law
async def a_listing_shows_the_objects_under_a_prefix(open_blob: OpenBlob) -> None:
    blob = open_blob()
    for key in ("b/1", "a/2", "a/1", "ab/1"):
        await blob.put(key, key.encode())
    listed = await blob.list("a/")
    assert [(entry.key, entry.size) for entry in listed] == [("a/1", 3), ("a/2", 3)]
    assert [entry.key for entry in await blob.list("")] == ["a/1", "a/2", "ab/1", "b/1"]
    await blob.close()


@_law
async def many_puts_at_once_are_all_there(open_blob: OpenBlob) -> None:
    blob = open_blob()
    await asyncio.gather(*(blob.put(f"many/{n}", bytes([n]) * n * 100) for n in range(24)))
    listed = {entry.key: entry.size for entry in await blob.list("many/")}
    assert listed == {f"many/{n}": n * 100 for n in range(24)}
    for n in range(24):
        assert await blob.get(f"many/{n}") == bytes([n]) * n * 100
    await blob.close()


@_law
async def second_close_is_fine(open_blob: OpenBlob) -> None:
    blob = open_blob()
    await blob.close()
    await blob.close()


@_law
async def another_process_sees_what_was_put(open_blob: OpenBlob) -> None:
    writer, reader = open_blob(), open_blob()
    await writer.put("a/x", b"seen")
    assert await reader.get("a/x") == b"seen"
    await writer.close()
    await reader.close()
