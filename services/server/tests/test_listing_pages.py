"""Pages of lists: each entry once over any pages, and alike over HTTP, gRPC and the command."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.errors import UsageError
from tidemill.rpc.identity import Grant, Role
from tidemill.rpc.messages import ResourceDocument
from tidemill.rpc.paging import Page, cut, list_page, page_of
from tidemill.testkit.command_host import command_host
from tidemill.testkit.up import up_process
from tidemill.testkit.web import Named, Web, web

DOCUMENTS = "---".join(
    f"""
apiVersion: tidemill.dev/v1alpha1
kind: Table
metadata: {{name: t{number}}}
spec: {{columns: [{{name: n, type: int}}]}}
"""
    for number in range(7)
)
NAMES = [f"t{number}" for number in range(7)]


@given(st.sets(st.text(max_size=3)), st.sets(st.text(max_size=3)), st.integers(1, 4))
async def test_pages_have_each_permitted_entry_once_in_order(
    keys: set[str], hidden: set[str], limit: int
) -> None:
    asked = 0

    async def visible(page: Page | None) -> list[str]:
        nonlocal asked
        asked += 1
        return cut(keys, page, str)

    def may(key: str) -> bool:
        return key not in hidden

    found: list[str] = []
    page: Page | None = Page(limit, may=may)
    if "" in keys:  # a key is never empty: every one is behind the first page's `after`
        keys.remove("")
    while page is not None:
        listed = await list_page(visible, page, str)
        assert len(listed) == limit or listed.next is None
        found += listed
        page = None if listed.next is None else Page(limit, listed.next, may)
    assert found == sorted(keys - hidden)
    # However few of many somebody may see, each page is asked for once.
    assert asked == max(1, -(-len(found) // limit))


def test_a_page_without_entries_is_refused() -> None:
    assert page_of(None, None) is None
    assert page_of(3, None) == Page(3)
    for limit, after in ((0, None), (-1, "x"), (None, "x"), (1 << 32, None)):
        with pytest.raises(UsageError, match="list refused"):
            page_of(limit, after)


async def pages(asked: Web, path: str, token: str) -> list[list[Any]]:
    """The pages of a list over HTTP, by the links from one to the next."""
    found, headers = [], {"Authorization": f"Bearer {token}"}
    following: str | None = path
    while following is not None:
        said = await asked.ask(following, headers=headers)
        assert said.status == 200, said.body
        found.append(said.json)
        link = said.headers.get("Link")
        following = None if link is None else re.fullmatch(r'<(.+)>; rel="next"', link)[1]  # type: ignore[index]
    return found


async def test_http_links_pages_of_what_the_caller_may_read(tmp_path: Path) -> None:
    users = Named(all=Grant(Role.admin), few=Grant(Role.reader, ("t1", "t4", "t6")))
    async with web(tmp_path, users) as asked:
        await asked.whole.controller.apply([ResourceDocument(DOCUMENTS, "test.yaml")])
        for token, names in (("all", NAMES), ("few", ["t1", "t4", "t6"])):
            path = "/v1/resources?kind=table&documents=false&limit=2"
            found = await pages(asked, path, token)
            listed = [each["name"] for page in found for each in page]
            assert [each for each in listed if each != "delays"] == names
            assert all(len(page) == 2 for page in found[:-1])
            found = await pages(asked, "/v1/collections?limit=3&after=t", token)
            assert [each["id"] for page in found for each in page] == names
        at = await asked.insert()
        found = await pages(
            asked, f"/v1/resources?kind=Table&limit=3&as_of={at}&after=Table/s", "few"
        )
        assert [each["name"] for each in found[0]] == ["t1", "t4", "t6"]
        assert len(found) == 1  # nothing follows a page that is just full
        for wrong in ("limit=0", "limit=x", "limit=4294967296", "after=Table/t1"):
            for path in ("/v1/resources", "/v1/collections"):
                said = await asked.ask(f"{path}?{wrong}", headers={"Authorization": "Bearer all"})
                assert (said.status, "limit" in said.json["detail"]) == (400, True), said.body


def test_the_command_and_the_client_have_the_same_pages(tmp_path: Path) -> None:
    with up_process(tmp_path) as server, server.client() as client, command_host() as commands:
        client.apply(ResourceDocument(DOCUMENTS, "test.yaml"))
        page = client.get(limit=3)
        assert ([each.name for each in page], page.next) == (NAMES[:3], "Table/t2")
        page = client.get("Table", limit=4, after=page.next)
        assert ([each.name for each in page], page.next) == (NAMES[3:], None)
        listed = client.collections(limit=2, after="t1")
        assert ([each.id for each in listed], listed.next) == (["t2", "t3"], "t3")
        with pytest.raises(UsageError, match="list refused"):
            client.get(limit=0)
        for words, last, following in (
            (("get", "--limit", "2"), "t1", "--limit 2 --after 'Table/t1'"),
            (("get", "--limit", "2", "--after", "Table/t1"), "t3", "--after 'Table/t3'"),
            (("get", "collections", "--limit", "2", "--after", "t1"), "t3", "--after 't3'"),
            (("get", "tables", "--limit", "7"), "t6", ""),
            (("get", "collections", "t5", "--limit", "2"), "t5", ""),  # a name is on any page
            (("get", "table", "t5", "--limit", "1", "--after", "Table/t6"), "t5", ""),
        ):
            command = [commands / "tidemill", "--address", server.address("grpc"), *words]
            ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
            assert last in ran.stdout.splitlines()[-1], ran.stdout
            assert following in ran.stderr
            assert bool(following) == bool(ran.stderr), ran.stderr
