"""Definitions of resources as of an instant, as the catalog has kept them."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tidemill.client.command import app
from tidemill.errors import BeforeSince, NotYet, UnknownCollection
from tidemill.host.settings import CatalogSettings
from tidemill.rpc.identity import Grant, Role
from tidemill.rpc.messages import ResourceDocument
from tidemill.testkit.up import up_process
from tidemill.testkit.web import TABLE, VIEW, Named, Web, web
from tidemill.testkit.whole import Whole, running

pytestmark = pytest.mark.server
HOLD = """
apiVersion: tidemill.dev/v1alpha1
kind: Hold
metadata: {name: kept}
spec: {collection: delays, frontier: 0}
"""


def written(whole: Whole) -> int:
    """The instant of the last change of the catalog."""
    return whole.context.store.upper - 1


async def test_a_definition_is_that_of_its_instant_after_changes_and_a_restart(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, TABLE) as whole:
        table = written(whole)
        await whole.apply(VIEW)
        first = written(whole)
        await whole.apply(VIEW.replace("d >= 30", "d >= 40"))
        changed = written(whole)
        await whole.apply(HOLD)
        held = written(whole)
        await whole.controller.delete("Hold", "kept")
    async with running(tmp_path) as whole:
        ask = whole.controller.get
        before = [status.name for status in await ask(None, None, as_of=table)]
        assert before == ["delays"]
        (late,) = await ask("views", "late", as_of=first)
        assert "d >= 30" in late.document_yaml
        assert late.details == {"asOf": first, "version": 1, "reads": ["delays"]}
        (late,) = await ask("View", "late", as_of=changed)
        assert "d >= 40" in late.document_yaml
        assert "d >= 30" in str(late.details["served"])  # until the version takes over
        kept = await whole.controller.describe("hold", "kept", held)
        assert (kept.details["reads"], kept.since, kept.upper) == (["delays"], None, None)
        with pytest.raises(UnknownCollection, match=f"no View late as of {table}; the one of now"):
            await whole.controller.describe("View", "late", table)
        with pytest.raises(
            UnknownCollection, match=rf"no View lat as of {first}; did you mean late\?"
        ):
            await whole.controller.describe("View", "lat", first)
        now = whole.context.clock.now_ms()
        assert {each.name for each in await ask(None, None, as_of=now)} == {"delays", "late"}
        with pytest.raises(NotYet, match="are not known yet"):
            await ask(None, None, as_of=now + 3_600_000)


async def test_a_definition_before_what_is_kept_is_refused_and_says_since_when(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, TABLE, catalog=CatalogSettings(keep_s=0)) as whole:
        table = written(whole)
        await whole.apply(VIEW)
        since = written(whole)
        with pytest.raises(BeforeSince, match=f"they can be read since {since}.*catalog.keep_s"):
            await whole.controller.get(None, None, as_of=table)
    async with running(tmp_path, catalog=CatalogSettings(keep_s=3_600)) as whole:
        await whole.apply(VIEW.replace("d >= 30", "d >= 40"))
        with pytest.raises(BeforeSince):  # what was let go of does not come back
            await whole.controller.get(None, None, as_of=table)
        (late,) = await whole.controller.get("View", None, as_of=since)
        assert "d >= 30" in late.document_yaml


async def get(asked: Web, path: str, user: str = "") -> tuple[int, object]:
    sent = {"headers": {"Authorization": f"Bearer {user}"}} if user else {}
    said = await asked.ask(path, **sent)
    return said.status, said.json


async def test_a_definition_is_told_over_http_to_its_readers_alone(tmp_path: Path) -> None:
    users = Named(
        anna=Grant(Role.admin, ("*",)), late=Grant(Role.reader, ("late",)),
        other=Grant(Role.reader, ("other",)),
    )  # fmt: skip
    async with web(tmp_path, users) as asked:
        at = written(asked.whole)
        await asked.whole.controller.delete("View", "late")
        status, found = await get(asked, f"/v1/resources/view/late?as_of={at}", "anna")
        assert status == 200
        assert isinstance(found, dict)
        assert "d >= 30" in found["document"]
        assert (found["reason"], found["details"]["reads"]) == ("AsOf", ["delays"])
        status, found = await get(asked, f"/v1/resources/view/late?as_of={at}", "late")
        assert isinstance(found, dict)
        assert (status, found["details"]["reads"]) == (200, ["…"])
        assert (await get(asked, f"/v1/resources/view/late?as_of={at}", "other"))[0] == 403
        assert await get(asked, f"/v1/resources?as_of={at}", "other") == (200, [])
        status, found = await get(asked, f"/v1/resources?as_of={at}&documents=false", "anna")
        assert isinstance(found, list)
        assert [(each["name"], each["document"]) for each in found] == [
            ("delays", ""),
            ("late", ""),
        ]
        assert (await get(asked, "/v1/resources/view/late", "anna"))[0] == 404


def test_the_command_shows_a_definition_as_of_an_instant(tmp_path: Path) -> None:
    with up_process(tmp_path) as server, server.client() as client:
        place = ["--address", client.address]

        def run(*arguments: str) -> str:
            ran = CliRunner().invoke(app, [*place, *arguments])
            assert ran.exit_code == 0, ran.output
            return ran.output

        client.apply(ResourceDocument(TABLE + "---" + VIEW, "test.yaml"))
        client.delete("View", "late")
        before = client.get("View", "late", "now")
        assert before == []
        listed = run("get", "--as-of", "now")
        assert "delays" in listed
        assert "AsOf" in listed
        assert "retain: all" in run("get", "table", "delays", "-o", "yaml", "--as-of", "now")
        told = run("describe", "table", "delays", "--as-of", "now")
        assert "frontiers, health and rates are known of now alone" in told
        assert "since" not in told
        refused = CliRunner().invoke(app, [*place, "get", "collections", "--as-of", "now"])
        assert refused.exit_code == 1
        assert "collections are listed as they are now" in refused.output
