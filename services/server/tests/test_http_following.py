"""Followers over HTTP: each change once, whatever happens to connections and processes."""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tidemill.client import Client
from tidemill.rpc.identity import Grant, Role
from tidemill.rpc.messages import Progress, ResourceDocument
from tidemill.testkit.up import UpProcess, up_process
from tidemill.testkit.web import VIEW, Named, Web, web
from tidemill.time import frontier
from tidemill_query.web import following
from tidemill_query.web.following import Feeds, event_pieces

PATH = "/v1/subscribe?goal=late(p,d)&snapshot=true"
NUMBERS = """
apiVersion: tidemill.dev/v1alpha1
kind: Table
metadata: {name: numbers}
spec: {columns: [{name: n, type: int}], retain: all}
---
apiVersion: tidemill.dev/v1alpha1
kind: View
metadata: {name: doubled}
spec: {retain: all, program: "doubled(n: n) := numbers(n) if n >= 0;"}
"""


@dataclass(frozen=True)
class Event:
    """An event as a browser dispatches it."""

    ident: str
    name: str
    data: Any


async def events(answer: aiohttp.ClientResponse) -> AsyncIterator[Event]:
    """Events by the rules of the standard: one counts once its blank line is there."""
    ident, name, data = "", "message", []
    async for line in answer.content:
        field, _, value = line.decode().rstrip("\n").partition(": ")
        if field == "id":
            ident = value
        elif field == "event":
            name = value
        elif field == "data":
            data.append(value)
        elif not field and data:
            yield Event(ident, name, json.loads("\n".join(data)))
            name, data = "message", []


async def read_until(web: Web, path: str, seen: int, last: str = "") -> tuple[str, Counter[str]]:
    """The last id, and the rows of as many events with changes as have `seen` rows."""
    found: Counter[str] = Counter()
    headers = {"Last-Event-ID": last} if last else {}
    async with web.session.get(f"{web.address}{path}", headers=headers) as answer:
        assert answer.status == 200, await answer.read()
        assert answer.headers["Content-Type"] == "text/event-stream"
        async with aclosing(events(answer)) as stream:
            async for event in stream:
                last = event.ident
                for row in event.data["rows"]:
                    found[row["p"]] += row["_diff"]
                if found.total() >= seen:
                    break
    return last, found


async def test_a_follower_has_the_snapshot_and_every_change_once(tmp_path: Path) -> None:
    async with web(tmp_path) as asked, asyncio.timeout(100):
        at = await asked.insert()
        await definite(asked, at)
        last, found = await read_until(asked, PATH, 2)
        assert found == {"N2": 1, "N3": 1}
        many = asyncio.gather(*(read_until(asked, PATH, 52) for _ in range(5)))
        for number in range(50):
            await asked.insert(pa.table({"plane": [f"P{number}"], "delay": [50], "gate": ["A"]}))
        wanted = {f"P{number}": 1 for number in range(50)}
        for _, all_of_them in await many:
            assert all_of_them == {"N2": 1, "N3": 1, **wanted}
        _, rest = await read_until(asked, PATH, 50, last)
        assert rest == wanted  # the snapshot is not repeated


async def test_a_connection_again_goes_on_behind_any_id(tmp_path: Path) -> None:
    async with web(tmp_path) as asked, asyncio.timeout(100):
        at = await asked.insert()
        await definite(asked, at)
        last, found = await read_until(asked, PATH, 2)
        for number in range(20):
            await asked.insert(pa.table({"plane": [f"P{number}"], "delay": [50], "gate": ["A"]}))
            if number % 3 and len(found) < number + 3:
                last, more = await read_until(asked, PATH, 1, last)
                found += more
        while len(found) < 22:
            last, more = await read_until(asked, PATH, 1, last)
            found += more
        assert set(found.values()) == {1}


async def test_a_snapshot_behind_the_end_is_refused_and_not_left_out(tmp_path: Path) -> None:
    async with web(tmp_path) as asked:
        at = await asked.insert()
        await definite(asked, at)
        said = await asked.ask(f"{PATH}&until={at - 1}")
        assert (said.status, said.json["reason"]) == (400, "Until")
        assert (await asked.ask(f"{PATH}&until={at + 60_000}&start={at + 60_000}")).status == 400


async def test_ids_that_are_none_are_refused_and_an_end_is_one(tmp_path: Path) -> None:
    async with web(tmp_path) as asked:
        at = await asked.insert()
        await definite(asked, at)
        far = str(at + 86_400_000)
        for hostile in ("x", "-1", "1e9", "9" * 40, "0", "١٢", far, f"{at}-", f"{at}-{'0' * 12}"):
            said = await asked.ask(PATH, headers={"Last-Event-ID": hostile})
            assert said.status == 400, hostile
            assert "Last-Event-ID" in said.json["detail"]
        for hostile in ("9" * 5_000, "0" * 19 + "1" * 5_000):  # more than Python reads as a number
            for path in (PATH, f"{PATH}&until={at}"):
                said = await asked.ask(path, headers={"Last-Event-ID": hostile})
                assert (said.status, said.json["reason"]) == (400, "LastEventId")
        for path in ("/v1/subscribe?goal=none(x)", "/v1/subscribe?goal=late(p"):
            assert (await asked.ask(path)).status in (400, 404)
        ended = await asked.ask(f"{PATH}&until={at}", headers={"Last-Event-ID": str(at)})
        assert ended.status == 204  # a browser does not come again


async def test_an_id_from_before_a_view_was_made_again_is_refused(tmp_path: Path) -> None:
    """Its rows are others: behind the old frontier some would be missed, others repeated."""
    async with web(tmp_path) as asked, asyncio.timeout(100):
        await definite(asked, await asked.insert())
        last, found = await read_until(asked, PATH, 2)
        async with asked.session.get(f"{asked.address}{PATH}") as answer:
            told = asyncio.create_task(names_of(answer))
            assert (await asked.ask("/v1/resources/View/late", "DELETE")).status == 204
            assert (await told)[-1] == "end"
        changed = VIEW.replace("d >= 30", "d >= 5")
        await asked.whole.controller.apply([ResourceDocument(changed, "test.yaml")])
        refused = await asked.ask(PATH, headers={"Last-Event-ID": last})
        assert (refused.status, refused.json["reason"]) == (400, "LastEventId")
        assert "another collection" in refused.json["detail"]
        _, found = await read_until(asked, PATH, 3)
        assert found == {"N1": 1, "N2": 1, "N3": 1}


async def test_an_id_of_a_system_that_was_set_up_anew_is_refused(tmp_path: Path) -> None:
    """Collections of another state folder have the same ids; who kept rows counted them twice."""
    async with web(tmp_path / "before") as asked:
        await definite(asked, await asked.insert())
        last, _ = await read_until(asked, PATH, 2)
    async with web(tmp_path / "anew") as asked:
        await definite(asked, await asked.insert())
        refused = await asked.ask(PATH, headers={"Last-Event-ID": last})
        assert (refused.status, refused.json["reason"]) == (400, "LastEventId")
        assert "another collection" in refused.json["detail"]


async def names_of(answer: aiohttp.ClientResponse) -> list[str]:
    """The names of all events of a stream."""
    return [event.name async for event in events(answer)]


async def definite(asked: Web, at: int) -> None:
    """Return once the view is definite as of the instant."""
    said = await asked.ask(f"/v1/collections/late/late?as_of={at}&wait_s=60")
    assert said.status == 200, said.body


async def test_only_readers_follow_and_a_shared_feed_opens_to_nobody_else(tmp_path: Path) -> None:
    users = Named(rita=Grant(Role.reader, ("late",)), omar=Grant(Role.reader, ("delays",)))
    async with web(tmp_path, users) as asked, asyncio.timeout(60):
        at = await asked.insert()
        rita = {"Authorization": "Bearer rita"}
        path = f"/v1/collections/late/late?as_of={at}&wait_s=60"
        assert (await asked.ask(path, headers=rita)).status == 200
        async with asked.session.get(f"{asked.address}{PATH}", headers=rita) as answer:
            await answer.content.readuntil(b"]}\n\n")
            omar = {"Authorization": "Bearer omar", "Last-Event-ID": str(at + 1)}
            assert (await asked.ask(PATH, headers=omar)).status == 403


async def test_followers_that_leave_end_what_they_shared(tmp_path: Path) -> None:
    async with web(tmp_path) as asked, asyncio.timeout(60):
        at = await asked.insert()
        await definite(asked, at)
        await asyncio.gather(*(read_until(asked, PATH, 2) for _ in range(20)))
        clock = asked.whole.context.clock
        while asked.whole.answers.feeds.followed():
            await asked.insert()
            await clock.sleep(0.1)


async def test_a_follower_behind_the_kept_events_reads_for_itself(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(following, "KEPT_BYTES_MAX", 1)
    async with web(tmp_path) as asked, asyncio.timeout(100):
        at = await asked.insert()
        await definite(asked, at)
        many = asyncio.gather(*(read_until(asked, PATH, 32) for _ in range(3)))
        for number in range(30):
            await asked.insert(pa.table({"plane": [f"P{number}"], "delay": [50], "gate": ["A"]}))
        for _, found in await many:
            assert set(found.values()) == {1}


class Breaks:
    """Its subscriptions fail by an error that nobody foresaw."""

    async def subscribe(self, *of: object) -> AsyncIterator[Progress]:
        yield Progress(frontier(5))
        raise ZeroDivisionError("a password")


async def test_a_failure_that_nobody_foresaw_ends_a_feed_and_the_next_one_begins_anew() -> None:
    """Its followers were sent comments for ever, as if nothing changed."""
    query: Any = Breaks()
    feeds = Feeds(query)
    with feeds.joined("late(p, d)", "0a") as feed:
        moved = feed.moved
        assert feed.task is not None
        await asyncio.wait([feed.task])
        assert moved.is_set()  # whoever waits is told
        assert feed.failed is not None
        said = following._problem(feed.failed).decode()
        assert said.startswith("event: problem\ndata: {")
        assert "the server failed: ZeroDivisionError" in said
        assert "password" not in said
        with feeds.joined("late(p, d)", "0a") as again:
            assert again is not feed


@given(st.lists(st.text(), max_size=20))
def test_any_text_is_one_event(texts: list[str]) -> None:
    table = pa.table({"t": texts, "_time": [1] * len(texts), "_diff": [1] * len(texts)})
    lines = b"".join(event_pieces(7, [table, table], "0a")).decode().split("\n")
    assert lines[0] == "id: 7-0a"
    assert lines[-2:] == ["", ""]
    assert "" not in lines[:-2]
    said = json.loads("\n".join(x.removeprefix("data: ") for x in lines if x[:6] == "data: "))
    assert [row["t"] for row in said["rows"]] == texts * 2


def insert(client: Client, numbers: list[int]) -> bool | None:
    client.insert("numbers", pa.table({"n": numbers}), token=f"numbers-from-{numbers[0]:08}")
    return True


async def follow_through(server: UpProcess, wanted: int, ends: Counter[str]) -> Counter[int]:
    """The rows that a browser is told while the server is killed: it only keeps the last id."""
    found: Counter[int] = Counter()
    last = ""
    async with aiohttp.ClientSession() as session:
        while found.total() < wanted:
            headers = {"Last-Event-ID": last} if last else {}
            try:
                address = (server.folder / "state" / "http.address").read_text().strip()
                url = f"{address}/v1/subscribe?goal=doubled(n)&snapshot=true"
                async with session.get(url, headers=headers) as answer:
                    if answer.status != 200:
                        ends[str(answer.status)] += 1
                        await asyncio.sleep(0.1)
                        continue
                    async for event in events(answer):
                        if event.name == "problem":
                            break
                        last = event.ident
                        for row in event.data["rows"]:
                            found[row["n"]] += row["_diff"]
                        if found.total() >= wanted:
                            return found
                ends["closed"] += 1
            except (aiohttp.ClientError, OSError):
                ends["broken"] += 1
                await asyncio.sleep(0.1)
    return found


async def test_followers_lose_and_repeat_nothing_over_kills(tmp_path: Path) -> None:
    """The companion is in it: every follower has seen its connection break at each kill."""
    rounds, each, followers = 4, 50, 8
    with up_process(tmp_path) as server:
        await asyncio.to_thread(
            server.until, lambda c: bool(c.apply(ResourceDocument(NUMBERS, "n.yaml"))) or None
        )
        breaks: list[Counter[str]] = [Counter() for _ in range(followers)]
        following = [
            asyncio.create_task(follow_through(server, rounds * each, ends)) for ends in breaks
        ]
        for number in range(rounds):
            for start in range(number * each, (number + 1) * each, 10):
                rows = list(range(start, start + 10))
                await asyncio.to_thread(server.until, lambda c, rows=rows: insert(c, rows))
            if number < rounds - 1:
                how = signal.SIGKILL if number % 2 == 0 else signal.SIGTERM
                await asyncio.to_thread(server.stop, how)
                await asyncio.to_thread(server.start)
        async with asyncio.timeout(200):
            found = await asyncio.gather(*following)
    assert found == [Counter(range(rounds * each))] * followers
    assert all(ends["broken"] + ends["closed"] >= 1 for ends in breaks)
    assert sum(ends["broken"] + ends["closed"] for ends in breaks) >= followers * (rounds - 1)


async def test_a_stream_ends_at_the_instant_that_was_asked(tmp_path: Path) -> None:
    async with web(tmp_path) as asked, asyncio.timeout(60):
        at = await asked.insert()
        await definite(asked, at)
        async with asked.session.get(f"{asked.address}{PATH}&start={at}&until={at + 1}") as answer:
            told = [event async for event in events(answer)]
        assert told[-1].ident.startswith(f"{at + 1}-")
        assert {row["p"] for event in told for row in event.data["rows"]} == {"N2", "N3"}
