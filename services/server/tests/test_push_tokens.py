"""Pushes with a token: each row is in the log once, whatever happened to the answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from tidemill.client import Client
from tidemill.client.command import app
from tidemill.client.commands_catalog import PUSH_ROWS
from tidemill.client.rows import INSERT_ROWS
from tidemill.errors import Indeterminate, UsageError
from tidemill.rpc import messages
from tidemill.rpc.messages import Inserted, ResourceDocument
from tidemill.runtime.http_messages import HttpRequest
from tidemill.runtime.log import Entry
from tidemill.runtime.log_embedded import EmbeddedLog
from tidemill.testkit.up import up_process
from tidemill.testkit.whole import Whole, opened
from tidemill_query.frontier_history import FrontierHistory
from tidemill_query.push_tokens import TOPICS_MAX, PushTokens
from tidemill_query.pushing import line_ends
from tidemill_query.web.commands import OfSource, push_rows
from tidemill_query.web.door import Asked, Handlers
from tidemill_query.web.following import Feeds
from tidemill_server.settings import ServerSettings

SOURCE = """
apiVersion: tidemill.dev/v1alpha1
kind: Source
metadata: {name: events}
spec: {http: {}, format: {json: {}}, columns: [{name: n, type: int}], retain: all}
"""
TOKEN = "a-token-of-this-push"


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Whole]:
    async with opened(ServerSettings(directory=str(folder / "state"))) as process:
        await process.start()
        yield process


def rows(*numbers: int) -> list[bytes]:
    return [json.dumps({"n": n}).encode() for n in numbers]


async def read_values(log: EmbeddedLog, topic: str) -> list[bytes | None]:
    """The values of every record, in the order of partitions and offsets."""
    bounds = await log.bounds(topic)
    reader = await log.reader(topic, {p: low for p, (low, _) in bounds.items()})
    found = []
    while any(at < bounds[p][1] for p, at in reader.positions().items()):
        found += await reader.poll(10_000, 0.1)
    await reader.close()
    return [record.value for record in sorted(found, key=lambda r: (r.partition, r.offset))]


@pytest.mark.rule("UP6", "D1")
async def test_v9_a_push_with_a_token_is_there_once(tmp_path: Path) -> None:
    async with running(tmp_path) as process:
        push = process.controller.push
        await process.controller.apply([ResourceDocument(SOURCE, "test.yaml")])
        again = [push("events", rows(1, 2), TOKEN) for _ in range(5)]
        assert {each.accepted for each in await asyncio.gather(*again)} == {2}
        await push("events", rows(3))
        await push("events", rows(1), TOKEN.replace("this", "that"))
    async with running(tmp_path) as process:  # the answer was lost, and the process with it
        assert (await process.controller.push("events", rows(1, 2), TOKEN)).accepted == 2
        assert isinstance(process.context.log, EmbeddedLog)
        assert await read_values(process.context.log, "http.events") == rows(1, 2, 3, 1)
        async with asyncio.timeout(60):
            while True:
                said = await process.query.ask("events(n)", None, 30.0)
                if sum(said.table["_diff"].to_pylist()) == 4:
                    return
                await asyncio.sleep(0.1)


async def not_asked(collection: str) -> Any:
    """No push needs to know this."""
    raise AssertionError(collection)


async def test_a1_what_http_says_of_a_push_is_looked_at_before_it_is_used(tmp_path: Path) -> None:
    """A1: bytes of a header that are no ASCII were an error of the server."""
    async with running(tmp_path) as process:
        await process.controller.apply([ResourceDocument(SOURCE, "test.yaml")])
        feeds = Feeds(process.query)
        on = Handlers(
            process.query, process.controller, feeds, None, process.controller.check, 3,
            public=True, now_ms=process.context.clock.now_ms, history=FrontierHistory(
                process.context.collections, process.context.clock
            ).of,
            identify=not_asked, birth=str, identity=not_asked, upper_of=not_asked,
        )  # fmt: skip
        asked = HttpRequest("POST", "/", {"name": "events"}, {}, {}, b'{"n": 1}\n' * 3)
        of = OfSource("events")
        assert (await push_rows(on, Asked(of, "", asked))).status == 200
        for changed, says in (
            (replace(asked, headers={"Idempotency-Key": "\udcff" * 20}), "no text of ASCII"),
            (replace(asked, body=b"1\n2\r\n3\r4\n"), r"4 rows, more than 3 \(limits\.push_rows\)"),
        ):
            with pytest.raises(UsageError, match=says):
                await push_rows(on, Asked(of, "", changed))
        many = ServerSettings().limits.push_rows + 1
        with pytest.raises(UsageError, match=r"limits\.push_rows"):
            await process.controller.push("events", [b"1"] * many)


class HalfLost(EmbeddedLog):
    """Of one append it keeps the first half, and tells nobody."""

    lost = False

    async def append(self, topic: str, records: Sequence[Entry]) -> list[tuple[int, int]]:
        if self.lost:
            return await super().append(topic, records)
        self.lost = True
        await super().append(topic, records[: len(records) // 2])
        raise Indeterminate("the answer is lost")


async def half_pushed(folder: Path) -> None:
    log = HalfLost(folder)
    await log.create_topic("t", 3)
    with pytest.raises(Indeterminate):
        await PushTokens(log, 100).append("t", TOKEN, [Entry(None, row) for row in rows(*range(8))])
    await log.close()


async def test_v9_a_push_may_break_off_with_half_of_its_rows_written(tmp_path: Path) -> None:
    await half_pushed(tmp_path)
    log = EmbeddedLog(tmp_path)
    assert sorted(map(str, await read_values(log, "t"))) == sorted(map(str, rows(*range(4))))
    await log.close()


async def test_v9_what_is_missing_of_a_push_is_what_its_repetition_writes(tmp_path: Path) -> None:
    await half_pushed(tmp_path)
    log = EmbeddedLog(tmp_path)
    entries = [Entry(None, row) for row in rows(*range(8))]
    for tokens in (PushTokens(log, 100), PushTokens(log, 100)):
        await tokens.append("t", TOKEN, entries)
        assert sorted(map(str, await read_values(log, "t"))) == sorted(map(str, rows(*range(8))))
    await log.close()


async def test_v9_a_token_that_comes_with_other_rows_is_refused(tmp_path: Path) -> None:
    """V9: rows other than those of the token before were acknowledged, and were not in the log."""
    log = EmbeddedLog(tmp_path)
    await log.create_topic("t", 2)

    def entries(*numbers: int) -> list[Entry]:
        return [Entry(None, row) for row in rows(*numbers)]

    await PushTokens(log, 100).append("t", TOKEN, entries(1, 2))
    for tokens in (PushTokens(log, 100), PushTokens(log, 100)):
        with pytest.raises(UsageError, match="its token came with another row 2 before"):
            await tokens.append("t", TOKEN, entries(1, 3, 4))
        await tokens.append("t", TOKEN, entries(1, 2))
    assert sorted(map(str, await read_values(log, "t"))) == sorted(map(str, rows(1, 2)))
    await log.close()


async def test_v9_tokens_are_known_for_the_last_rows_and_cost_memory_for_no_more(
    tmp_path: Path,
) -> None:
    log = EmbeddedLog(tmp_path)
    tokens = PushTokens(log, 4)
    for topic in [f"t{n}" for n in range(TOPICS_MAX + 5)]:
        await log.create_topic(topic, 1)
        await tokens.append(topic, TOKEN, [Entry(None, b"1")])
    assert len(tokens._topics) <= TOPICS_MAX
    for number in range(20):
        await tokens.append("t0", f"{TOKEN} {number}", [Entry(None, b"%d" % number)])
        await tokens.append("t0", f"{TOKEN} {number}", [Entry(None, b"%d" % number)])
    assert len(tokens._topics["t0"].keys) <= 5
    assert len(await read_values(log, "t0")) == 21
    # The one that was left out of memory is known from the log.
    await tokens.append("t1", TOKEN, [Entry(None, b"1")])
    assert len(await read_values(log, "t1")) == 1
    with pytest.raises(UsageError, match=r"limits\.push_rows_known"):
        await tokens.append("t0", TOKEN, [Entry(None, b"")] * 5)
    with pytest.raises(UsageError, match="16 or more"):
        await tokens.append("t0", "short", [Entry(None, b"")])
    await log.close()


def test_v9_tokens_come_over_grpc_and_over_http(tmp_path: Path) -> None:
    with up_process(tmp_path) as server, server.client() as client:
        client.apply(ResourceDocument(SOURCE, "test.yaml"))
        for _ in range(2):
            assert client.push("events", rows(1, 2), token=TOKEN).accepted == 2
        posted = Request(
            f"{server.address('http')}/v1/sources/events/rows",
            data=b'{"n": 1}\n{"n": 2}\n{"n": 3}\n',
            headers={"Idempotency-Key": TOKEN},
        )
        for _ in range(2):
            with urlopen(posted) as answer:
                assert json.load(answer) == {"accepted": 3}

        def all_there(_: object) -> list[int] | None:
            table = client.query("events(n)").table
            assert "_diff" not in table.column_names, "a row is there twice"
            return sorted(table["n"].to_pylist()) if table.num_rows >= 3 else None

        assert server.until(all_there) == [1, 2, 3]


def test_v9_the_command_pushes_once_for_each_key(tmp_path: Path) -> None:
    """More lines than one call of a push without a key has: with one they are a single push."""
    assert PUSH_ROWS < 6000
    lines = b"\n".join(rows(*range(6000)))
    with up_process(tmp_path) as server, server.client() as client:
        client.apply(ResourceDocument(SOURCE, "test.yaml"))

        def pushed(sent: bytes, *options: str) -> Result:
            arguments = ["--address", server.address("grpc"), "push", "events", *options]
            return CliRunner().invoke(app, arguments, input=sent)

        for _ in range(2):
            result = pushed(lines, "--idempotency-key", TOKEN)
            assert result.output == "6,000 rows in the log of events\n", result.output
        assert pushed(rows(6000)[0]).exit_code == 0
        refused = pushed(b"1", "--idempotency-key", "short")
        assert refused.exit_code == 1
        assert "16 or more" in refused.output

        def all_there(_: object) -> int | None:
            table = client.query("events(n)").table
            assert "_diff" not in table.column_names, "a row is there twice"
            return table.num_rows if table.num_rows > 6000 else None

        assert server.until(all_there) == 6001


def test_v9_the_command_inserts_once_for_each_key(tmp_path: Path) -> None:
    """V9: a push had a key and an insert had none. Each step of a long insert is a request of its
    own.
    """
    table = "\n".join(SOURCE.replace("Source", "Table").replace("events", "t").splitlines())
    table = table.replace("http: {}, format: {json: {}}, ", "")
    lines = "\n".join(json.dumps({"n": n}) for n in range(INSERT_ROWS + 3))
    with up_process(tmp_path) as server, server.client() as client:
        client.apply(ResourceDocument(table, "test.yaml"))

        def inserted(sent: str, *options: str) -> Result:
            arguments = ["--address", server.address("grpc"), "insert", "t", *options]
            return CliRunner().invoke(app, arguments, input=sent)

        said = [inserted(lines, "--idempotency-key", TOKEN).output.splitlines()[-1] for _ in "ab"]
        assert said[0] == said[1]
        assert said[0].startswith(f"{INSERT_ROWS + 3:,} rows in t, present from ")
        assert inserted('{"n": -1}').exit_code == 0
        refused = inserted('{"n": -2}', "--idempotency-key", TOKEN)
        assert refused.exit_code == 1
        assert "its token came with other updates before" in refused.output
        found = client.query("t(n)", timeout_s=60).table
        assert "_diff" not in found.column_names, "a row is there twice"
        assert found.num_rows == INSERT_ROWS + 4


def test_an_insert_goes_in_smaller_steps_into_a_table_with_more_columns_than_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of a table with 167 columns were refused, whatever the command was told."""
    table = "\n".join(SOURCE.replace("Source", "Table").replace("events", "t").splitlines())
    table = table.replace("http: {}, format: {json: {}}, ", "")
    more = ", ".join(f"{{name: m{at}, type: int, nullable: true}}" for at in range(199))
    table = table.replace("type: int}]", f"type: int}}, {more}]")
    monkeypatch.setattr(messages, "INSERT_VALUES_BYTES_MAX", 8 * 201 * 3)
    lines = "\n".join(json.dumps({"n": n}) for n in range(7))
    sent: list[int] = []
    insert = Client.insert

    def counted(client: Client, name: str, rows: pa.Table, **more: Any) -> Inserted:
        sent.append(rows.num_rows)
        return insert(client, name, rows, **more)

    monkeypatch.setattr(Client, "insert", counted)
    with up_process(tmp_path) as server, server.client() as client:
        client.apply(ResourceDocument(table, "test.yaml"))
        arguments = ["--address", server.address("grpc"), "insert", "t"]
        assert CliRunner().invoke(app, arguments, input=lines).exit_code == 0
    assert sent == [3, 3, 1]


@given(st.binary(max_size=40).map(lambda body: bytes(b"\r\na"[each % 3] for each in body)))
def test_a3_line_ends_are_counted_the_same_in_pieces(body: bytes) -> None:
    whole = body.count(b"\n") + body.count(b"\r") - body.count(b"\r\n")
    for piece in (1, 2, 3, 1 << 20):
        assert line_ends(body, piece) == whole
