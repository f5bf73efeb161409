"""Rows of the catalog that cannot be read: one resource each that is broken, stated anew, or
deleted.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import pyarrow as pa
import pytest

from tidemill.catalog.store import CATALOG
from tidemill.errors import TidemillError, Unavailable, UnknownCollection, UsageError
from tidemill.rpc.messages import Outcome, ResourceDocument, ResourceStatus
from tidemill.runtime.places import PlaceSettings
from tidemill.runtime.places.settings import SecretSettings
from tidemill.shard import Appended
from tidemill.testkit.whole import Whole, opened, served_over_http
from tidemill.time import frontier, sole_time
from tidemill_server.commands.offline import delete_offline
from tidemill_server.settings import ServerSettings

HEAD = "apiVersion: tidemill.dev/v1alpha1\n"
TABLE = """
kind: Table
metadata: {name: base}
spec: {columns: [{name: n, type: int}], retain: all}
"""
VIEW = """
kind: View
metadata: {name: fine}
spec: {retain: all, program: "good(x) := base(x);"}
"""
ALERTS = """
kind: View
metadata: {name: alerts}
spec: {retain: all, program: "alert(x) := base(x) if x > 100;"}
"""
SOURCE = """
kind: Source
metadata: {name: web}
spec: {http: {}, columns: [{name: n, type: int}], timestampInterval: 50ms}
"""
ACTION = """
kind: Action
metadata: {name: tell}
spec: {view: alerts, goal: "alert(x)", sink: {redis: {url: "redis://127.0.0.1:1/0"}}}
"""
HOLD = """
kind: Hold
metadata: {name: kept}
spec: {collection: base}
"""
KINDS = {
    "Table/base": TABLE, "View/fine": VIEW, "View/alerts": ALERTS, "Source/web": SOURCE,
    "Action/tell": ACTION, "Hold/kept": HOLD,
}  # fmt: skip

GARBAGE = {
    "no JSON": {"document": "{"},
    "nothing": {"document": ""},
    "null": {"document": None},
    "another document": {"document": '{"kind": "View", "metadata": {"name": "x"}, "spec": {}}'},
    "deep": {"document": "[" * 100_000},
    "a list": {"document": "[]"},
    "what is resolved": {"resolved": "[7]"},
    "a version before": {"resolved": '{"before": {}, "version": 2, "base": 1}'},
    "a lone surrogate": {"document": '{"spec": {"retain": "\\ud800"}}'},
    "all of it": {"document": "\0", "resolved": None, "created_ms": None, "incarnation": None},
}
"""Contents of a row's columns: by a damaged store, another version, or any other writer."""

PASSWORD = "PLANTED-77aa"
OLD_SOURCE = {
    "apiVersion": "tidemill.dev/v1alpha1", "kind": "Source", "metadata": {"name": "web"},
    "spec": {
        "kafka": {"topic": "pings"}, "columns": [{"name": "n", "type": "int"}],
        "timestampInterval": "50ms",
        "format": {"avro": {"registry": {
            "url": "http://127.0.0.1:1", "username": "u", "passwordFile": "/etc/p", "caFile": "/etc/c"}}},
    },
}  # fmt: skip
"""The form of commits from before secrets had names."""

OLD_ACTION = {
    "apiVersion": "tidemill.dev/v1alpha1", "kind": "Action", "metadata": {"name": "tell"},
    "spec": {"view": "alerts", "goal": "alert(x)",
             "sink": {"redis": {"url": f"redis://u:{PASSWORD}@127.0.0.1:1/0"}}},
}  # fmt: skip
NEW_SOURCE = """
kind: Source
metadata: {name: web}
spec:
  kafka: {topic: pings}
  columns: [{name: n, type: int}]
  timestampInterval: 50ms
  format: {avro: {registry: {url: "http://127.0.0.1:1", username: u, secret: registry}}}
"""
NEW_ACTION = """
kind: Action
metadata: {name: tell}
spec:
  view: alerts
  goal: alert(x)
  sink: {redis: {url: "redis://127.0.0.1:1/0", username: u, secret: redis}}
"""


HOOK = """
kind: Action
metadata: {name: tell}
spec:
  view: alerts
  goal: alert(x)
  sink: {http: {url: "http://127.0.0.1:1/hook?room=7", headers: {X-Mill: a}}}
"""
MENDED_HOOK = HOOK.replace("{X-Mill: a}", "{X-Mill: a}, secretHeaders: {Authorization: redis}")


def shown_hook(headers: dict[str, object], **spec: object) -> str:
    """The document of HOOK as versions stored it that took secrets as values of headers."""
    sink = {"http": {"url": "http://127.0.0.1:1/hook?room=7", "headers": headers}}
    return json.dumps({
        "apiVersion": "tidemill.dev/v1alpha1", "kind": "Action", "metadata": {"name": "tell"},
        "spec": {"view": "alerts", "goal": "alert(x)", "sink": sink, **spec},
    })  # fmt: skip


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Whole]:
    secrets = {
        name: SecretSettings(str(folder / "secret"), ("127.0.0.1:1",))
        for name in ("registry", "ca", "redis")
    }
    (folder / "secret").write_text(PASSWORD)
    settings = ServerSettings(
        directory=str(folder / "state"), retry_s_min=0.05, retry_s_max=0.2, broken_s_max=0.2,
        places=PlaceSettings(secrets=secrets),
    )  # fmt: skip
    async with opened(settings) as process:
        await process.start()
        yield process


async def apply(process: Whole, *texts: str) -> list[Outcome]:
    documents = [ResourceDocument(HEAD + text, "test.yaml") for text in texts]
    return [applied.outcome for applied in await process.controller.apply(documents)]


async def statuses(process: Whole) -> dict[str, ResourceStatus]:
    return {f"{s.kind}/{s.name}": s for s in await process.controller.get(None, None)}


async def until(process: Whole, name: str, *reasons: str) -> ResourceStatus:
    async with asyncio.timeout(120):
        while True:
            status = (await statuses(process))[name]
            if status.reason in reasons:
                return status
            await asyncio.sleep(0.02)


async def catalog(process: Whole) -> list[dict[str, object]]:
    """All rows of the catalog as it is stored, each once."""
    collections = process.context.collections
    at = sole_time((await collections.status(CATALOG)).upper) - 1
    held, _ = await collections.acquire(CATALOG, owner="test")
    try:
        rows = (await collections.snapshot(held, at)).to_pylist()
    finally:
        await collections.drop(held)
    return [dict(row) for row in rows]


async def rewrite(folder: Path, name: str, columns: Mapping[str, object]) -> None:
    """Change the row of a resource while no server runs."""
    async with opened(ServerSettings(directory=str(folder / "state"))) as process:
        collections = process.context.collections
        kind, _, short = name.partition("/")
        (row,) = [r for r in await catalog(process) if (r["kind"], r["name"]) == (kind, short)]
        status = await collections.status(CATALOG)
        at = sole_time(status.upper)
        description = await collections.description(CATALOG)
        schema = pa.schema([*description.schema, ("_time", pa.uint64()), ("_diff", pa.int64())])
        changed = [
            {**row, "_time": at, "_diff": -1},
            {**row, **columns, "_time": at, "_diff": 1},
        ]
        table = pa.Table.from_pylist([{n: r.get(n) for n in schema.names} for r in changed], schema)
        outcome = await collections.compare_and_append(
            CATALOG, frontier(at), frontier(at + 1), table, writer="catalog"
        )
        assert isinstance(outcome, Appended)


async def insert_and_ask(process: Whole, row: int) -> None:
    """Insert a row, and wait until it is in the answer of the view that is fine."""
    at = (await process.controller.insert("base", pa.table({"n": [row]}))).time
    table = (await process.query.ask("fine/good(x)", at, 120.0)).table
    assert row in table.column(0).to_pylist()


async def rows_of(process: Whole, name: str) -> list[dict[str, object]]:
    kind, _, short = name.partition("/")
    return [r for r in await catalog(process) if (r["kind"], r["name"]) == (kind, short)]


@pytest.mark.parametrize("what", GARBAGE)
async def test_s3_a_row_that_cannot_be_read_is_one_broken_resource(
    what: str, tmp_path: Path
) -> None:
    async with running(tmp_path) as process:
        await apply(process, TABLE, VIEW, ALERTS, SOURCE)
    await rewrite(tmp_path, "Source/web", GARBAGE[what])
    await rewrite(tmp_path, "View/alerts", GARBAGE[what])
    async with running(tmp_path) as process:
        for name in ("Source/web", "View/alerts"):
            status = await until(process, name, "Broken")
            assert " in " in status.message  # class and place
            assert "the row of the catalog cannot be read" in status.message
            assert "apply it anew" in status.message
        await insert_and_ask(process, 1)
        with pytest.raises(Unavailable, match="describe source web"):
            await process.controller.push("web", [b"{}"])
        assert (await process.controller.describe("source", "web")).reason == "Broken"
        assert await apply(process, SOURCE) == [Outcome.CREATED]
        await until(process, "Source/web", "Running", "NoRecords")
        await process.controller.push("web", [b'{"n": 3}'])
        await process.controller.delete("view", "alerts")
        assert set(await statuses(process)) == {"Table/base", "View/fine", "Source/web"}
        # The old row is retracted to the byte: one row is left of each name.
        assert len(await rows_of(process, "Source/web")) == 1
        (deleted,) = await rows_of(process, "View/alerts")
        assert deleted["deleted"]
    async with running(tmp_path) as process:
        await insert_and_ask(process, 2)
        assert (await until(process, "Source/web", "Running")).reason == "Running"
        assert await apply(process, ALERTS) == [Outcome.CREATED]


@pytest.mark.parametrize("name", KINDS)
async def test_s3_each_kind_is_stated_anew_and_deleted(name: str, tmp_path: Path) -> None:
    async with running(tmp_path) as process:
        await apply(process, *KINDS.values())
    for again in (1, 2):
        await rewrite(tmp_path, name, GARBAGE["no JSON"])
        async with running(tmp_path) as process:
            await until(process, name, "Broken")
            if again == 1:
                table = name == "Table/base"
                outcome = Outcome.CONFIGURED if table else Outcome.CREATED
                assert await apply(process, KINDS[name]) == [outcome]
                status = await until(process, name, "Running", "NoRecords", "Retrying")
                assert status.ready or name == "Action/tell"
                if name == "Table/base":
                    await until(process, "View/fine", "Running")
                    await insert_and_ask(process, 5)
            elif name == "Table/base":
                with pytest.raises(UsageError, match="is used by"):
                    await process.controller.delete("table", "base")
            else:
                kind, _, short = name.partition("/")
                if name == "View/alerts":
                    await process.controller.delete("action", "tell")
                await process.controller.delete(kind, short)
                assert name not in await statuses(process)
            assert len(await rows_of(process, name)) == 1


async def test_a_view_of_an_earlier_version_runs_whatever_engine_it_names(tmp_path: Path) -> None:
    async with running(tmp_path) as process:
        await apply(process, TABLE, VIEW)
        await insert_and_ask(process, 1)
        (row,) = await rows_of(process, "View/fine")
    document = json.loads(str(row["document"]))
    document["spec"]["engine"] = "scratch"
    older = json.dumps(document, sort_keys=True)
    resolved = {"before": document, "version": 2, "base": 1}
    for columns in ({"document": older}, {"document": older, "resolved": json.dumps(resolved)}):
        await rewrite(tmp_path, "View/fine", columns)
        async with running(tmp_path) as process:
            await until(process, "View/fine", "Running")
            await insert_and_ask(process, 2 + len(columns))
            with pytest.raises(UsageError, match="allowed: auto, local, spark"):
                await apply(process, VIEW.replace("{retain: all", "{retain: all, engine: scratch"))
            assert await apply(process, VIEW) == [Outcome.UNCHANGED]


async def test_s3_rows_of_a_table_stay_when_it_is_stated_anew(tmp_path: Path) -> None:
    async with running(tmp_path) as process:
        await apply(process, TABLE, VIEW)
        await insert_and_ask(process, 1)
    await rewrite(tmp_path, "Table/base", GARBAGE["no JSON"])
    async with running(tmp_path) as process:
        await until(process, "Table/base", "Broken")
        other = TABLE.replace("type: int", "type: text")
        before = await process.context.collections.status(CATALOG)
        with pytest.raises(TidemillError, match="schema refused"):
            await apply(process, other)
        # Nothing was written: the view, which tries to begin all the time, cannot begin on these.
        assert (await process.context.collections.status(CATALOG)).upper == before.upper
        assert (await statuses(process))["Table/base"].reason == "Broken"
        assert (await statuses(process))["View/fine"].reason == "Retrying"
        assert await apply(process, TABLE) == [Outcome.CONFIGURED]
        await until(process, "View/fine", "Running")
        await insert_and_ask(process, 2)
        table = (await process.query.ask("fine/good(x)", None, 120.0)).table
        assert sorted(table.column(0).to_pylist()) == [1, 2]


def test_s3_a_row_that_cannot_be_read_is_deleted_offline(tmp_path: Path) -> None:
    async def prepare_folder() -> None:
        async with running(tmp_path) as process:
            await apply(process, TABLE, VIEW, SOURCE)
        await rewrite(tmp_path, "Source/web", {"kind": "Dashboard", **GARBAGE["no JSON"]})
        await rewrite(tmp_path, "View/fine", GARBAGE["no JSON"])
        async with running(tmp_path) as process:
            # A kind that only another version knows is deleted by its name.
            await until(process, "Dashboard/web", "Broken")
            await process.controller.delete("dashboards", "web")

    async def look() -> set[str]:
        async with running(tmp_path) as process:
            assert await apply(process, VIEW) == [Outcome.CREATED]
            await insert_and_ask(process, 1)
            return set(await statuses(process))

    asyncio.run(prepare_folder())
    delete_offline("View", "fine", str(tmp_path / "state"), None)
    assert asyncio.run(look()) == {"Table/base", "View/fine"}


async def test_s13_a_row_of_an_older_version_says_what_to_write_instead(tmp_path: Path) -> None:
    async with running(tmp_path) as process:
        await apply(process, TABLE, VIEW, ALERTS, NEW_SOURCE, ACTION)
        before = (await until(process, "Source/web", "Running", "NoRecords")).upper
        assert before is not None
    await rewrite(tmp_path, "Source/web", {"document": json.dumps(OLD_SOURCE)})
    await rewrite(tmp_path, "Action/tell", {"document": json.dumps(OLD_ACTION)})
    async with running(tmp_path) as process:
        source = await until(process, "Source/web", "Broken")
        assert 'unknown field "passwordFile"' in source.message
        assert "write secret: NAME, with places.secrets.NAME.file" in source.message
        assert "write authority: NAME" in source.message
        action = await until(process, "Action/tell", "Broken")
        assert "user and password are written as username and secret" in action.message
        assert PASSWORD not in repr(await statuses(process))
        await insert_and_ask(process, 1)
        # Parts that were not wrong are not changed on the way.
        with pytest.raises(UsageError, match=r"spec\.columns cannot change .*passwordFile"):
            await apply(process, NEW_SOURCE.replace("name: n,", "name: m,"))
        with pytest.raises(UsageError, match=r"spec\.goal cannot change"):
            await apply(process, NEW_ACTION.replace("alert(x)", "alert(y)"))
        assert await apply(process, NEW_SOURCE) == [Outcome.CONFIGURED]
        assert await apply(process, NEW_ACTION) == [Outcome.CONFIGURED]
        assert (await until(process, "Action/tell", "Retrying")).reason == "Retrying"
        (row,) = await rows_of(process, "Source/web")
        assert row["incarnation"] == 1  # over the collections that it has
    async with running(tmp_path) as process:
        after = (await until(process, "Source/web", "Running", "NoRecords")).upper
        assert after is not None
        assert sole_time(after) >= sole_time(before)
        await insert_and_ask(process, 2)


async def outbox_of(process: Whole) -> list[dict[str, object]]:
    """The outbox of the action, once there is anything in it."""
    async with asyncio.timeout(120):
        while True:
            with suppress(UnknownCollection):
                rows = (await process.context.collections.read_updates("tell/outbox")).to_pylist()
                if rows:
                    return rows
            await asyncio.sleep(0.02)


async def test_s13_a_secret_in_a_header_is_never_shown_and_leaves_it_by_apply(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as process:
        await apply(process, TABLE, VIEW, ALERTS, HOOK)
        await insert_and_ask(process, 101)
        outbox = await outbox_of(process)
    await rewrite(
        tmp_path,
        "Action/tell",
        {"document": shown_hook({"Authorization": PASSWORD, "X-Mill": "a"})},
    )
    async with running(tmp_path) as process:
        (stored,) = await rows_of(process, "Action/tell")
        assert PASSWORD in str(stored)  # planted where nothing shows it
        status = await until(process, "Action/tell", "Broken")
        assert "name it in secretHeaders" in status.message
        described = await process.controller.describe("action", "tell")
        at = process.context.store.upper - 1
        former = await process.controller.get("action", "tell", as_of=at)
        assert "X-Mill: a" in described.document_yaml
        assert "Authorization: …" in described.document_yaml
        said = [await http_says(process, at), repr(await statuses(process))]
        assert "Authorization" in said[0]
        assert PASSWORD not in repr((said, status, described, former))
        for other, field in (
            (MENDED_HOOK.replace("alert(x)", "alert(y)"), r"spec\.goal"),
            (MENDED_HOOK.replace("X-Mill: a", "X-Mill: b"), r"http\.headers\.X-Mill"),
            (MENDED_HOOK.replace("room=7", "room=8"), r"http\.url"),
            (MENDED_HOOK.replace("Authorization:", "X-Other: ca, Authorization:"), "X-Other"),
        ):
            with pytest.raises(UsageError, match=rf"{field} cannot change .*Authorization"):
                await apply(process, other)
        assert await apply(process, MENDED_HOOK) == [Outcome.CONFIGURED]
        await until(process, "Action/tell", "Retrying")
        former = await process.controller.get("action", "tell", as_of=at)
        assert "Authorization: …" in former[0].document_yaml
        (row,) = await rows_of(process, "Action/tell")
        assert (row["incarnation"], PASSWORD in str(row)) == (1, False)
        assert (await outbox_of(process))[: len(outbox)] == outbox


@pytest.mark.parametrize("wrong", [{}, {"unknown": 1}], ids=["alone", "beside another mistake"])
async def test_s13_the_only_header_leaves_by_apply(
    wrong: dict[str, object], tmp_path: Path
) -> None:
    mended = MENDED_HOOK.replace("headers: {X-Mill: a}, ", "").replace("Author", "author")
    async with running(tmp_path) as process:
        await apply(process, TABLE, ALERTS, HOOK)
    document = shown_hook({"Authorization": f"{PASSWORD}\n"}, **wrong)
    await rewrite(tmp_path, "Action/tell", {"document": document})
    async with running(tmp_path) as process:
        await until(process, "Action/tell", "Broken")
        assert PASSWORD not in repr(await statuses(process))
        assert await apply(process, mended) == [Outcome.CONFIGURED]


async def http_says(process: Whole, at: int) -> str:
    """All that the HTTP interface says of the action, now and as of an instant."""
    said = ""
    async with served_over_http(process) as address, aiohttp.ClientSession() as session:
        for path in ("", "/action/tell", f"?as_of={at}", f"/action/tell?as_of={at}"):
            async with session.get(f"{address}/v1/resources{path}") as answer:
                assert answer.status == 200
                said += await answer.text()
    return said
