"""The conformance kit of Consensus: every law holds for every implementation.

`open_consensus()` opens the same store each time, as another process would.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tidemill.shard.ports import Consensus, ManyHeads, Seen, Version

OpenConsensus = Callable[[], Consensus]
Law = Callable[[OpenConsensus], Awaitable[None]]

LAWS: list[Law] = []


def _law(law: Law) -> Law:
    LAWS.append(law)
    return law


@_law
async def a_key_without_versions_has_no_head(open_consensus: OpenConsensus) -> None:
    store = open_consensus()
    assert await store.head("a") is None
    assert list(await store.scan("a", 0)) == []
    assert list(await store.keys()) == []
    await store.close()


@_law
async def versions_are_read_in_the_order_of_their_numbers(open_consensus: OpenConsensus) -> None:
    store = open_consensus()
    versions = [Version(number, f"v{number}".encode()) for number in range(12)]
    for version in versions:
        expected = version.number - 1 if version.number else None
        assert await store.compare_and_set("a", expected, version)
    assert list(await store.scan("a", 0)) == versions
    assert list(await store.scan("a", 9)) == versions[9:]
    assert await store.head("a") == versions[-1]
    await store.close()


@_law
async def a_stale_expectation_changes_nothing(open_consensus: OpenConsensus) -> None:
    store = open_consensus()
    assert await store.compare_and_set("a", None, Version(0, b"first"))
    for expected in (None, 1, 5):
        assert not await store.compare_and_set("a", expected, Version(6, b"lost"))
    assert list(await store.scan("a", 0)) == [Version(0, b"first")]
    await store.close()


@_law
async def a_version_of_another_history_at_the_same_number_is_not_expected(
    open_consensus: OpenConsensus,
) -> None:
    store = open_consensus()
    ours, theirs = Version(3, b"ours"), Version(3, b"theirs")
    assert not await store.compare_and_set("a", Seen.of(ours), Version(4, b"next"))
    assert await store.compare_and_set("a", None, theirs)
    for expected in (Seen.of(ours), Seen(2, Seen.of(theirs).digest), Seen(3, "")):
        assert not await store.compare_and_set("a", expected, Version(4, b"next"))
    assert list(await store.scan("a", 0)) == [theirs]
    assert await store.compare_and_set("a", Seen.of(theirs), Version(4, b"next"))
    assert await store.head("a") == Version(4, b"next")
    await store.close()


@_law
async def of_many_writers_of_one_version_exactly_one_wins(open_consensus: OpenConsensus) -> None:
    stores = [open_consensus() for _ in range(4)]
    await stores[0].compare_and_set("a", None, Version(0, b""))
    for number in range(1, 11):
        won = await asyncio.gather(
            *(
                store.compare_and_set("a", number - 1, Version(number, b"%d" % index))
                for index, store in enumerate(stores)
            )
        )
        assert sum(won) == 1
        head = await stores[0].head("a")
        assert head == Version(number, b"%d" % won.index(True))
    for store in stores:
        await store.close()


@_law
async def keys_do_not_touch_each_other(open_consensus: OpenConsensus) -> None:
    store = open_consensus()
    for key in ("b", "a/b", "a", "ü"):
        assert await store.compare_and_set(key, None, Version(0, key.encode()))
    assert list(await store.keys()) == sorted(["b", "a/b", "a", "ü"])
    assert await store.head("a/b") == Version(0, b"a/b")
    await store.close()


@_law
async def heads_of_many_keys_are_those_of_each(open_consensus: OpenConsensus) -> None:
    """Of stores that tell them in one exchange."""
    store = open_consensus()
    assert list(await store.heads([])) == [] if isinstance(store, ManyHeads) else True
    keys = [f"k{number}" for number in range(40)]
    for number, key in enumerate(keys):
        assert await store.compare_and_set(key, None, Version(number, key.encode()))
        if number % 3 == 0:
            assert await store.compare_and_set(key, number, Version(number + 2, b"next"))
    if isinstance(store, ManyHeads):
        asked = ["none", *keys, "nor this"]
        assert list(await store.heads(asked)) == [await store.head(key) for key in asked]
    assert list(await store.keys()) == sorted(keys)
    await store.close()


@_law
async def truncation_keeps_the_newest_version(open_consensus: OpenConsensus) -> None:
    store = open_consensus()
    for number in range(6):
        await store.compare_and_set("a", number - 1 if number else None, Version(number, b"x"))
    await store.truncate("a", 4)
    assert [version.number for version in await store.scan("a", 0)] == [4, 5]
    await store.truncate("a", 100)
    assert [version.number for version in await store.scan("a", 0)] == [5]
    assert await store.compare_and_set("a", 5, Version(6, b"y"))
    assert list(await store.keys()) == ["a"]
    await store.close()


@_law
async def bytes_come_back_as_they_were(open_consensus: OpenConsensus) -> None:
    store = open_consensus()
    data = bytes(range(256)) * 4096
    await store.compare_and_set("a", None, Version(0, data))
    assert await store.head("a") == Version(0, data)
    await store.close()


@_law
async def numbers_may_leave_gaps_and_the_newest_is_what_counts(
    open_consensus: OpenConsensus,
) -> None:
    store = open_consensus()
    assert await store.compare_and_set("a", None, Version(5, b"five"))
    assert await store.compare_and_set("a", 5, Version(9, b"nine"))
    assert not await store.compare_and_set("a", 5, Version(10, b"late"))
    assert list(await store.scan("a", 6)) == [Version(9, b"nine")]
    await store.close()


@_law
async def another_process_sees_a_version_as_soon_as_it_is_acknowledged(
    open_consensus: OpenConsensus,
) -> None:
    writer, reader = open_consensus(), open_consensus()
    for number in range(8):
        version = Version(number, b"x" * number)
        assert await writer.compare_and_set("a", number - 1 if number else None, version)
        assert await reader.head("a") == version
        assert list(await reader.scan("a", number)) == [version]
    await writer.close()
    await reader.close()


@_law
async def writes_to_many_keys_at_once_all_win(open_consensus: OpenConsensus) -> None:
    store = open_consensus()
    for number in range(3):
        expected = number - 1 if number else None
        won = await asyncio.gather(
            *(
                store.compare_and_set(f"k{at:02}", expected, Version(number, b"%d" % at))
                for at in range(20)
            )
        )
        assert all(won)
    assert list(await store.keys()) == [f"k{at:02}" for at in range(20)]
    assert [version.number for version in await store.scan("k07", 0)] == [0, 1, 2]
    await store.close()


@_law
async def of_writes_to_one_key_at_once_one_wins(open_consensus: OpenConsensus) -> None:
    store = open_consensus()
    won = await asyncio.gather(
        *(store.compare_and_set("a", None, Version(0, b"%d" % at)) for at in range(10))
    )
    assert sum(won) == 1
    assert await store.head("a") == Version(0, b"%d" % won.index(True))
    await store.close()


@_law
async def truncation_of_a_key_without_versions_makes_none(open_consensus: OpenConsensus) -> None:
    store = open_consensus()
    await store.truncate("a", 3)
    assert await store.head("a") is None
    assert list(await store.keys()) == []
    await store.close()


@_law
async def second_close_is_fine(open_consensus: OpenConsensus) -> None:
    store = open_consensus()
    await store.head("a")
    await store.close()
    await store.close()
