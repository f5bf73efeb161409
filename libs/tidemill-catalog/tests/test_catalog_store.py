"""The catalog as several processes have it open: each knows what the others wrote."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.catalog.store import CATALOG, CatalogMoved, ResourceStore, Stored
from tidemill.errors import BeforeSince
from tidemill.runtime.clock import ManualClock
from tidemill.runtime.resources import load_resources
from tidemill.shard import Collections, MemoryBlob, MemoryConsensus

KEEP_MS = 1_000_000
NAMES = ("a", "b", "c")


class Shared:
    """Stores of several processes."""

    def __init__(self) -> None:
        self.clock, self.blob = ManualClock(1_000), MemoryBlob()
        self._consensus, self._ids = MemoryConsensus(), map(str, itertools.count())

    async def process(self, keep_ms: int | None) -> tuple[Collections, ResourceStore]:
        """One more process, which has read the catalog."""
        found = Collections(self._consensus, self.blob, self.clock, self._ids.__next__)
        store = ResourceStore(found, self.clock, keep_ms=keep_ms)
        await store.open()
        return found, store


@cache
def defined(name: str, least: int) -> Stored:
    (view,) = load_resources(
        f"{{apiVersion: tidemill.dev/v1alpha1, kind: View, metadata: {{name: {name}}}, "
        f"spec: {{program: '{name}(x) :- t(x), x >= {least}.', inputs: {{t: t}}}}}}"
    )
    return Stored(view, 1_000)


def known(store: ResourceStore) -> Mapping[object, object]:
    """All that a process knows: resources, by which names they are found, rows."""
    names = {name: found for name, found in store._by_name.items() if found}
    return {"rows": store._rows, "names": names, "written": store._written, "upper": store.upper}


@given(
    keep_ms=st.sampled_from([0, 2, KEEP_MS]),
    steps=st.lists(
        st.tuples(
            st.sampled_from(["put", "delete", "end", "look", "compact"]),
            st.integers(0, 1), st.lists(st.sampled_from(NAMES), min_size=1, unique=True),
            st.integers(0, 3),
        ),
        max_size=12,
    ),
)  # fmt: skip
async def test_a_process_that_follows_the_catalog_knows_what_one_that_reads_it_anew_knows(
    keep_ms: int, steps: list[tuple[str, int, list[str], int]]
) -> None:
    shared = Shared()
    processes = [await shared.process(keep_ms) for _ in range(2)]
    for what, which, names, least in steps:
        collections, store = processes[which]
        await shared.clock.advance(least)
        try:
            if what == "put":
                await store.put([defined(name, least) for name in names])
            elif what == "delete" and store.get("View", names[0]) is not None:
                await store.delete("View", names[0])
            elif what == "end" and store.ending():
                await store.record_end(store.ending()[0])
            elif what == "compact":
                await collections.compact(CATALOG)
        except CatalogMoved:
            pass
        if what == "look":
            await store.refresh()
    _, anew = await shared.process(keep_ms)
    for _, store in processes:
        await store.refresh()
        assert known(store) == known(anew)


async def test_a_look_reads_what_was_written_since_the_last_one_not_the_kept_history(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads: list[str] = []
    for name in ("snapshot", "changes"):
        inner = getattr(Collections, name)

        def count(
            *given: Any, _name: str = name, _inner: Callable[..., object] = inner, **more: Any
        ) -> object:
            reads.append(_name)
            return _inner(*given, **more)

        monkeypatch.setattr(Collections, name, count)
    for keep_ms, wanted in ((KEEP_MS, ["changes"]), (0, ["changes", "snapshot"])):
        shared = Shared()
        _, writer = await shared.process(keep_ms)
        await writer.put([defined(name, 0) for name in NAMES])
        _, reader = await shared.process(keep_ms)
        before = reader.get("View", "b")
        for least in (1, 2):
            await shared.clock.advance(10)
            await writer.put([defined("a", least)])
        reads.clear()
        assert await reader.refresh()
        assert reads == wanted  # the companion: history that went by is not asked for in pieces
        assert reader.get("View", "a") == defined("a", 2)
        assert keep_ms == 0 or reader.get("View", "b") is before


async def test_a_process_that_answers_nothing_lets_no_definitions_go() -> None:
    shared = Shared()
    _, store = await shared.process(KEEP_MS)
    for least in (1, 2):
        await shared.clock.advance(1_000)
        await store.put([defined("a", least)])
    _, other = await shared.process(None)
    assert await store.as_of(store.upper - 1_001) == [defined("a", 1)]
    assert await other.as_of(store.upper - 1_001) == [defined("a", 1)]
    _, other = await shared.process(0)  # the companion
    with pytest.raises(BeforeSince):
        await other.as_of(store.upper - 1_001)
