"""Resources: applied once, changed where that is allowed, deleted when nobody reads them, kept for
ever.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tidemill.errors import BeforeSince, NotYet, Unavailable, UnknownCollection, UsageError
from tidemill.rpc.messages import CollectionShape, Outcome
from tidemill.testkit.whole import Whole, running
from tidemill.time import frontier, sole_time

SOURCE = """
apiVersion: tidemill.dev/v1alpha1
kind: Source
metadata: {name: pings}
spec:
  http: {}
  format: {json: {}}
  columns: [{name: host, type: text}]
  timestampInterval: 50ms
  retain: 10m
"""
TABLE = """
apiVersion: tidemill.dev/v1alpha1
kind: Table
metadata: {name: hosts}
spec: {columns: [{name: name, type: text}], retain: all}
"""
VIEW = """
apiVersion: tidemill.dev/v1alpha1
kind: View
metadata: {name: silence}
spec:
  retain: all
  program: silent(h) := hosts(h) ^ not pings(h);
"""
VIEW_OVER_VIEW = """
apiVersion: tidemill.dev/v1alpha1
kind: View
metadata: {name: loudness}
spec: {retain: all, program: loud(h) := hosts(h) ^ not silent(h);}
"""


async def insert(process: Whole, *names: str) -> int:
    return (await process.controller.insert("hosts", pa.table({"name": list(names)}))).time


async def push_hosts(process: Whole, *hosts: str) -> int:
    """Push rows and return an instant at which they are there."""
    await process.controller.push("pings", [f'{{"host": "{host}"}}'.encode() for host in hosts])
    for _ in range(2_000):
        upper = sole_time((await process.context.collections.status("pings")).upper)
        if upper and {(host,) for host in hosts} <= set(
            await process.answer("pings(h)", upper - 1)
        ):
            return upper - 1
        await asyncio.sleep(0.02)
    pytest.fail("the rows do not arrive")


async def push_rows(process: Whole, *rows: dict[str, object]) -> int:
    """Push rows of a host and its rack, and return an instant at which they are there."""
    await process.controller.push("pings", [json.dumps(row).encode() for row in rows])
    wanted = {(row["host"], row.get("rack")) for row in rows}
    for _ in range(2_000):
        upper = sole_time((await process.context.collections.status("pings")).upper)
        if upper and wanted <= set(await process.answer("pings(h, r)", upper - 1)):
            return upper - 1
        await asyncio.sleep(0.02)
    pytest.fail("the rows do not arrive")


@pytest.mark.rule("D2", "MV6")
async def test_a_view_follows_its_inputs_and_survives_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as process:
        outcomes = await process.apply(VIEW_OVER_VIEW, VIEW, TABLE, SOURCE)
        assert outcomes == [Outcome.CREATED] * 4
        first = await insert(process, "a", "b", "c")
        assert await process.answer("silent(h)", first) == [("a",), ("b",), ("c",)]
        at = await push_hosts(process, "b")
        assert await process.answer("silence/silent(h)", at) == [("a",), ("c",)]
    async with running(tmp_path) as process:
        assert await process.apply(SOURCE, TABLE, VIEW, VIEW_OVER_VIEW) == [Outcome.UNCHANGED] * 4
        at = await push_hosts(process, "c")
        assert await process.answer("silent(h)", at) == [("a",)]
        assert await process.answer("loud(h)", at) == [("b",), ("c",)]
        assert await process.answer("silent(h)", first) == [("a",), ("b",), ("c",)]
        assert {s.reason for s in await process.controller.get(None, None)} == {"Running"}


@pytest.mark.rule("MV7", "D2", "C1")
async def test_what_a_view_derives_without_making_it_an_output_is_rebuilt_after_a_restart(
    tmp_path: Path,
) -> None:
    view = VIEW.replace("retain: all", "retain: all\n  outputs: [heard]").replace(
        "not pings(h);", "not pings(h); heard(h) := hosts(h) ^ not silent(h);"
    )
    async with running(tmp_path) as process:
        await process.apply(SOURCE, TABLE, view)
        await insert(process, "a", "b", "c")
        first = await push_hosts(process, "b")
        assert await process.answer("heard(h)", first) == [("b",)]
    async with running(tmp_path) as process:
        ids = await process.context.collections.ids()
        assert any("heard" in each for each in ids)
        assert not any("silent" in each for each in ids)
        at = await push_hosts(process, "c")
        assert await process.answer("heard(h)", at) == [("b",), ("c",)]
        assert await process.answer("heard(h)", first) == [("b",)]


async def test_what_cannot_change_is_refused_and_what_can_is_configured(tmp_path: Path) -> None:
    async with running(tmp_path) as process:
        await process.apply(SOURCE, TABLE)
        longer = SOURCE.replace("retain: 10m", "retain: 1h")
        assert await process.apply(longer, TABLE) == [Outcome.CONFIGURED, Outcome.UNCHANGED]
        with pytest.raises(UsageError) as refused:
            await process.apply(longer.replace("type: text", "type: int"), VIEW)
        assert "spec.columns cannot change" in str(refused.value)
        assert "test.yaml" in str(refused.value)
        assert {s.name for s in await process.controller.get(None, None)} == {"pings", "hosts"}


async def test_a_table_gains_nullable_columns_as_long_as_no_view_reads_it(tmp_path: Path) -> None:
    wider = TABLE.replace("type: text}]", "type: text}, {name: rack, type: int, nullable: true}]")
    assert wider != TABLE
    async with running(tmp_path) as process:
        await process.apply(TABLE)
        await insert(process, "a")
        with pytest.raises(UsageError):
            await process.apply(wider.replace("nullable: true", "nullable: false"))
        assert await process.apply(wider) == [Outcome.CONFIGURED]
        rows = pa.table({"name": ["b"], "rack": pa.array([7], pa.int64())})
        at = (await process.controller.insert("hosts", rows)).time
        assert await process.answer("hosts(n, r)", at) == [("a", None), ("b", 7)]
    async with running(tmp_path) as process:
        assert await process.apply(wider) == [Outcome.UNCHANGED]
        assert await process.answer("hosts(n, r)", at) == [("a", None), ("b", 7)]
        with pytest.raises(UsageError):
            await process.apply(TABLE)
    async with running(tmp_path / "read") as process:
        await process.apply(SOURCE, TABLE, VIEW)
        with pytest.raises(UsageError) as refused:
            await process.apply(wider)
        assert "spec.columns cannot change" in str(refused.value)


async def test_a_source_gains_nullable_columns_and_rows_from_before_are_null_in_them(
    tmp_path: Path,
) -> None:
    kept = SOURCE.replace("retain: 10m", "retain: all")
    wider = kept.replace("type: text}]", "type: text}, {name: rack, type: int, nullable: true}]")
    events = kept.replace("name: pings", "name: seen").replace("type: text}]", "type: text}, {name: at, type: int}]") + "  eventTime: {column: at, timeline: t, skew: 1s, expiresAfter: 1m}\n"  # fmt: skip
    async with running(tmp_path) as process:
        lines = kept.replace("format: {json: {}}", "format: {csv: {}}").replace("pings", "lines")
        await process.apply(kept, events, lines)
        await push_hosts(process, "a")
        for refused in (
            wider.replace("nullable: true", "nullable: false"),
            wider.replace("name: host", "name: place"),
            events.replace("{name: at", "{name: more, type: int, nullable: true}, {name: at"),
            lines.replace("type: text}]", "type: text}, {name: z, type: int, nullable: true}]"),
        ):
            with pytest.raises(UsageError) as error:
                await process.apply(refused)
            assert "may gain nullable columns behind those it has" in str(error.value)
        assert await process.apply(wider) == [Outcome.CONFIGURED]
        at = await push_rows(process, {"host": "b", "rack": 7}, {"host": "c"})
        assert await process.answer("pings(h, r)", at) == [("a", None), ("b", 7), ("c", None)]
    async with running(tmp_path) as process:
        assert await process.apply(wider, events) == [Outcome.UNCHANGED] * 2
        at = await push_rows(process, {"host": "d", "rack": 8})
        assert await process.answer("pings(h, r)", at) == [
            ("a", None), ("b", 7), ("c", None), ("d", 8),
        ]  # fmt: skip
        await process.apply(VIEW.replace("pings(h)", "pings(h, _)"), TABLE)
        with pytest.raises(UsageError):
            await process.apply(wider.replace("nullable: true}]", "nullable: true}, {name: z, type: int, nullable: true}]"))  # fmt: skip


async def test_an_event_stream_gains_columns_and_its_own_stay_at_the_end(tmp_path: Path) -> None:
    events = SOURCE.replace("retain: 10m", "retain: all").replace(
        "type: text}]", "type: text}, {name: at, type: int}]"
    ) + "  eventTime: {column: at, timeline: t, skew: 1s, expiresAfter: 1h}\n"  # fmt: skip
    wider = events.replace("at, type: int}]", "at, type: int}, {name: rack, type: int, nullable: true}]")  # fmt: skip

    async def events_at(process: Whole, at: int) -> list[tuple[object, ...]]:
        rows = (await process.query.snapshot("pings", at, 120.0)).table
        kept = rows.drop_columns(["time", "expires", "_diff"])
        return sorted(zip(*(column.to_pylist() for column in kept.columns), strict=True))

    async with running(tmp_path) as process:
        await process.apply(events)
        before = [{"host": "a", "at": 1_000, "rack": 1}, {"host": "b", "at": 9_000}]
        await process.controller.push("pings", [json.dumps(row).encode() for row in before])
        assert await events_at(process, 7_000) == [("a", 1_000)]
        # The row at 9 s is not released yet: it was written before there was the column.
        assert await process.apply(wider) == [Outcome.CONFIGURED]
        after = [{"host": "c", "at": 10_000, "rack": 7}, {"host": "end", "at": 60_000}]
        await process.controller.push("pings", [json.dumps(row).encode() for row in after])
        rows = [("a", 1_000, None), ("b", 9_000, None), ("c", 10_000, 7)]
        assert await events_at(process, 20_000) == rows
        names = (await process.context.collections.description("pings")).schema.names
        assert names == ["host", "at", "rack", "time", "expires"]
    async with running(tmp_path) as process:
        assert await process.apply(wider) == [Outcome.UNCHANGED]
        late = [{"host": "d", "at": 70_000, "rack": 8}, {"host": "end", "at": 90_000}]
        await process.controller.push("pings", [json.dumps(row).encode() for row in late])
        assert await events_at(process, 20_000) == rows
        found = await events_at(process, 80_000)
        assert [row for row in found if row[0] != "end"] == [*rows, ("d", 70_000, 8)]


async def test_a_file_source_gains_columns_that_its_header_names(tmp_path: Path) -> None:
    path = tmp_path / "hosts.csv"
    path.write_text("rack,name,site\n1,a,x\n")
    source = f"""
apiVersion: tidemill.dev/v1alpha1
kind: Source
metadata: {{name: hosts}}
spec:
  file: {{path: {path}, format: csv}}
  columns: [{{name: name, type: text}}MORE]
  timestampInterval: 50ms
  retain: all
"""

    def with_columns(*more: str) -> str:
        gained = "".join(f", {{name: {name}, type: int, nullable: true}}" for name in more)
        return source.replace("MORE", gained)

    async def hosts(process: Whole, goal: str, count: int) -> list[tuple[object, ...]]:
        async with asyncio.timeout(240):
            while len(found := await process.answer(goal)) < count:
                await asyncio.sleep(0.02)
        return found

    async with running(tmp_path) as process:
        await process.apply(with_columns())
        assert await hosts(process, "hosts(n)", 1) == [("a",)]
        with pytest.raises(UsageError) as refused:
            await process.apply(with_columns("floor"))
        assert "not floor" in str(refused.value)
        assert await process.apply(with_columns("rack")) == [Outcome.CONFIGURED]
        with path.open("a") as file:
            file.write("7,b,y\n,c,z\n")
        assert await hosts(process, "hosts(n, r)", 3) == [("a", None), ("b", 7), ("c", None)]


async def test_an_apply_with_one_mistake_changes_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as process:
        with pytest.raises(UsageError) as refused:
            await process.apply(TABLE, VIEW)
        assert "pings" in str(refused.value)
        assert list(await process.controller.get(None, None)) == []
        assert await process.apply(SOURCE, TABLE, VIEW) == [Outcome.CREATED] * 3


def reading(name: str, other: str, program: str = "o(x) := i(x);") -> str:
    return (
        f"apiVersion: tidemill.dev/v1alpha1\nkind: View\nmetadata: {{name: {name}}}\n"
        f'spec: {{inputs: {{i: {other}}}, program: "{program}"}}\n'
    )


@pytest.mark.parametrize(
    ("views", "says"),
    [
        ([reading("a", "b/o"), reading("b", "a/o")], "View/a, View/b read each other"),
        ([reading("a", "a/o")], "View/a reads what it makes"),
        ([reading("a", "b/o"), reading("b", "hosts", "o(x) := j(x);")], "`j` is neither derived"),
        ([reading("a", "b/o"), reading("b", "nobody")], "there is no nobody"),
    ],
)
async def test_views_that_wait_for_others_are_told_the_mistake_behind(
    tmp_path: Path, views: list[str], says: str
) -> None:
    async with running(tmp_path) as process:
        with pytest.raises(UsageError) as refused:
            await process.apply(TABLE, *views)
        assert says in str(refused.value)
        assert list(await process.controller.get(None, None)) == []


async def test_nothing_is_deleted_that_somebody_reads_and_a_name_may_come_back(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as process:
        await process.apply(SOURCE, TABLE, VIEW)
        await insert(process, "a")
        for kind, name in (("Source", "pings"), ("table", "hosts")):
            with pytest.raises(UsageError) as refused:
                await process.controller.delete(kind, name)
            assert "View/silence" in str(refused.value)
        await process.controller.delete("view", "silence")
        await process.controller.delete("Table", "hosts")
        with pytest.raises(UnknownCollection):
            await process.controller.insert("hosts", pa.table({"name": ["b"]}))
        await process.apply(TABLE, VIEW)
        at = await insert(process, "b")
        assert await process.answer("hosts(n)", at) == [("b",)]
        assert await process.answer("silent(h)", at) == [("b",)]
    async with running(tmp_path) as process:
        assert await process.answer("hosts(n)", at) == [("b",)]


async def test_rows_are_removed_by_a_negative_diff_and_refused_where_they_do_not_fit(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as process:
        await process.apply(TABLE)
        first = await insert(process, "a", "b")
        gone = pa.table({"name": ["a"], "_diff": pa.array([-1], pa.int64())})
        at = (await process.controller.insert("hosts", gone)).time
        assert at > first
        assert await process.answer("hosts(n)", at) == [("b",)]
        with pytest.raises(UsageError):
            await process.controller.insert("hosts", pa.table({"host": ["a"]}))
        with pytest.raises(UsageError):
            await process.controller.insert("hosts", pa.table({"name": pa.array([[1]])}))


async def test_an_instant_is_answered_exactly_or_not_at_all(tmp_path: Path) -> None:
    async with running(tmp_path) as process:
        await process.apply(TABLE.replace("retain: all", "retain: 50ms"))
        first = await insert(process, "a")
        with pytest.raises(NotYet):
            await process.query.ask("hosts(n)", first + 3_600_000, 0.0)
        await asyncio.sleep(0.2)
        last = await insert(process, "b")
        assert last - first > 100
        with pytest.raises(BeforeSince) as early:
            await process.query.ask("hosts(n)", first, 0.0)
        assert early.value.since == frontier(last - 49)
        with pytest.raises(UnknownCollection) as unknown:
            await process.query.ask("host(n)", None, 0.0)
        assert "hosts" in str(unknown.value)


@pytest.mark.rule("K1", "K5", "F12")
async def test_a_hold_keeps_history_for_its_owner(tmp_path: Path) -> None:
    async with running(tmp_path) as process:
        await process.apply(TABLE.replace("retain: all", "retain: 50ms"))
        first = await insert(process, "a")
        hold = f"""
apiVersion: tidemill.dev/v1alpha1
kind: Hold
metadata: {{name: audit}}
spec: {{collection: hosts, frontier: {first}}}
"""
        await process.apply(hold)
        await asyncio.sleep(0.15)
        await insert(process, "b")
        assert await process.answer("hosts(n)", first) == [("a",)]
        kept = (await process.controller.describe("table", "hosts")).details["heldBack"]
        assert any(f"hosts at [{first}]: hold:audit since 20" in line for line in kept), kept
        with pytest.raises(UsageError):
            await process.controller.delete("table", "hosts")
        await process.controller.delete("hold", "audit")
        await insert(process, "c")
        with pytest.raises(BeforeSince):
            await process.answer("hosts(n)", first)


async def test_a_name_that_a_user_bound_to_a_collection_is_left_alone(tmp_path: Path) -> None:
    shape = CollectionShape(pa.schema([("n", pa.int64())]), user_writable=True)
    async with running(tmp_path) as process:
        await process.storage.create("pings", shape, frontier(0), "me", None)
        await process.apply(SOURCE)
        await process.controller.push("pings", [b'{"host": "a"}'])
        async with asyncio.timeout(240):
            while not (await process.query.snapshot("pings", None, 120.0)).table.num_rows:
                await asyncio.sleep(0.02)
        assert (await process.query.snapshot("pings", None, 120.0)).table["host"].to_pylist() == [
            "a"
        ]
        assert (await process.context.collections.description("pings")).schema == shape.schema


async def test_a_pushed_source_can_be_deleted_and_applied_again(tmp_path: Path) -> None:
    async with running(tmp_path) as process:
        await process.apply(SOURCE)
        await push_hosts(process, "before")
        await process.controller.delete("Source", "pings")
        assert await process.apply(SOURCE) == [Outcome.CREATED]
        await process.controller.push("pings", [b'{"host": "after"}'])
        async with asyncio.timeout(240):
            while await process.answer("pings(h)") != [("after",)]:
                await asyncio.sleep(0.02)


TWO = """
apiVersion: tidemill.dev/v1alpha1
kind: View
metadata: {name: two}
spec:
  retain: 100ms
  program: |
    here(h) := hosts(h) ^ pings(h);
    gone(h) := hosts(h) ^ not pings(h);
"""


@pytest.mark.rule("MV1")
async def test_a_view_is_installed_with_all_its_outputs(tmp_path: Path) -> None:
    async with running(tmp_path) as process:
        assert await process.apply(SOURCE, TABLE, TWO) == [Outcome.CREATED] * 3
        assert {"two/here", "two/gone"} <= set(await process.context.collections.ids())


@pytest.mark.rule("MV1")
async def test_a_view_whose_installing_was_cut_off_has_all_its_outputs_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = TWO.replace("retain: 100ms", "retain: all")
    async with running(tmp_path) as process:
        await process.apply(SOURCE, TABLE)
        with pytest.raises(UsageError):
            await process.apply(two.replace("pings(h);", "pings(h, _);", 1))
        assert not {"two/here", "two/gone"} & set(await process.context.collections.ids())
        bind = process.context.collections.bind

        async def cut_off(collection: str, *rest: Any, **named: Any) -> Any:
            if collection.endswith("/gone"):
                raise Unavailable("the process is as good as dead")
            return await bind(collection, *rest, **named)

        with monkeypatch.context() as patch:
            patch.setattr(process.context.collections, "bind", cut_off)
            with pytest.raises(Unavailable):
                await process.apply(two)
        assert {"two/here", "two/gone"} & set(await process.context.collections.ids()) == {
            "two/here"
        }
    async with running(tmp_path) as process:
        await insert(process, "a")
        at = await push_hosts(process, "a")
        assert await process.answer("here(h)", at) == [("a",)]
        assert await process.answer("gone(h)", at) == []


@pytest.mark.rule("C2", "C3")
async def test_a_view_has_frontiers_as_a_source_has_and_since_moves_as_its_readers_allow(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as process:
        await process.apply(SOURCE.replace("retain: 10m", "retain: 100ms"), TABLE, TWO)
        at = await push_hosts(process, "a")
        store = process.context.collections
        for name in ("two/here", "pings"):
            reader = await store.read_hold(name, owner="somebody")
            held = sole_time(reader.frontier)
            await store.wait_for_upper(name, max(at, held) + 1_000, 240.0)
            assert (await store.status(name)).since == reader.frontier
            await store.drop(reader)
            async with asyncio.timeout(240):
                while (status := await store.status(name)).since == reader.frontier:
                    await asyncio.sleep(0.02)
            assert reader.frontier.precedes(status.since)
            assert status.since.precedes(status.upper)
        told = {shown.name: shown for shown in await process.controller.get(None, None)}
        for name in ("two", "pings"):
            since, upper = told[name].since, told[name].upper
            assert since is not None
            assert upper is not None
            assert since.precedes(upper)


WRONG = [
    ("spec: {inputs: {q: nosuch}, program: p(x) := q(x);}", "4:20: View/v: spec.inputs.q: there is no"),
    ("spec:\n  inputs: {h: hosts}\n  program: |\n    p(x) :=\n      h(x, _);", "8:7: S109"),
    ("spec: {inputs: {h: hosts}, outputs: [p, q], program: p(x) := h(x);}", "4:41: View/v: spec.outputs[1]"),
    ("spec: {inputs: {h: hosts}, columns: {p: [a, b]}, program: p(x) := h(x);}",
     "4:41: View/v: spec.columns.p: p has 1 columns"),
    ("spec:\n  inputs: {h: hosts}\n  program: |\n    p(x) @next := h(x);", "6:12: View/v: spec.program"),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "told"), WRONG)
async def test_what_does_not_fit_is_told_at_its_place_in_the_file(
    tmp_path: Path, spec: str, told: str
) -> None:
    text = f"apiVersion: tidemill.dev/v1alpha1\nkind: View\nmetadata: {{name: v}}\n{spec}\n"
    async with running(tmp_path) as process:
        await process.apply(TABLE)
        with pytest.raises(UsageError) as error:
            await process.apply(text)
        assert f"test.yaml:{told}" in str(error.value)
        assert str(error.value).count("View/v") == 1


async def test_a_view_names_the_columns_of_its_outputs(tmp_path: Path) -> None:
    text = VIEW.replace("retain: all", "retain: all\n  columns: {silent: [host]}")
    async with running(tmp_path) as process:
        await process.apply(TABLE, SOURCE, text)
        at = await insert(process, "a")
        found = (await process.query.snapshot("silent", at, 120.0)).table
        assert found.drop_columns(["_diff"]).to_pylist() == [{"host": "a"}]
        assert await process.answer("silent(host: h)", at) == [("a",)]
    async with running(tmp_path) as process:
        assert await process.answer("silent(host: h)", at) == [("a",)]


async def test_a_name_that_collections_have_is_refused_to_a_resource_of_another_kind(
    tmp_path: Path,
) -> None:
    namesake = "\napiVersion: tidemill.dev/v1alpha1\nkind: {kind}\nmetadata: {{name: hosts}}\nspec: {spec}\n"
    spec = '{retain: all, program: "p(h) := hosts(h);"}'
    async with running(tmp_path) as process:
        await process.apply(TABLE)
        at = await insert(process, "a")
        with pytest.raises(UsageError) as error:
            await process.apply(namesake.format(kind="View", spec=spec))
        assert str(error.value) == (
            "test.yaml:4:18: metadata.name: View/hosts: its collections would be named as those of "
            "Table/hosts, which is applied; choose another name"
        )
        assert [each.kind for each in await process.controller.get(None, None)] == ["Table"]
        assert await process.answer("hosts(h)", at) == [("a",)]
        hold = namesake.format(kind="Hold", spec="{collection: hosts}")
        await process.apply(hold)  # makes no collection
