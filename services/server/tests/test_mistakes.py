"""First mistakes: one sentence with place and remedy over every surface alike."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import urlopen

import pytest
from playwright.async_api import Browser, expect
from typer.testing import CliRunner

from tidemill.client import Client
from tidemill.client.command import app
from tidemill.errors import TidemillError, UsageError
from tidemill.rpc.messages import ResourceDocument
from tidemill.testkit.browsing import console
from tidemill.testkit.up import up_process
from tidemill.testkit.web import TABLE, VIEW, web

SOURCE = """
apiVersion: tidemill.dev/v1alpha1
kind: Source
metadata: {name: events}
spec: {http: {}, format: {json: {}}, columns: [{name: n, type: int}]}
"""
GOALS = (
    ("laet(p, d)", "there is no laet; did you mean late?"),
    ("late(p)", "late has 2 columns, not 1; write late(plane, delay)"),
    ("late(speed: s)", "late has no column 'speed'; it has plane, delay"),
    ('late(p, "fast")', "never"),
    ("late(p", "1:7"),
    ("none", "there is no none"),
    ("select * from late", "`tidemill sql` asks in SQL"),
)
Call = Callable[[Client], object]
OTHERS: tuple[tuple[tuple[str, ...], Call, str, str], ...] = (
    (
        ("get", "veiws"),
        lambda client: client.get("veiws"),
        "/v1/resources?kind=veiws",
        "there is no kind 'veiws'; did you mean \"view\"?",
    ),
    (
        ("query", "late", "--as-of", "tomorrow"),
        lambda client: client.query("late", as_of="tomorrow"),
        "/v1/collections/late?as_of=tomorrow",
        "'tomorrow' is no instant: write milliseconds",
    ),
    (
        ("query", "late", "--as-of", "99999999999999"),
        lambda client: client.query("late", as_of=99999999999999),
        "/v1/collections/late?as_of=99999999999999",
        "has not come past 99999999999999: upper is",
    ),
    (
        ("describe", "view", "laet"),
        lambda client: client.describe("View", "laet"),
        "/v1/resources/View/laet",
        "there is no view laet; did you mean late?",
    ),
)


def test_a_mistake_has_one_sentence_over_every_surface(tmp_path: Path) -> None:
    asked = [
        (("query", goal), lambda client, goal=goal: client.query(goal), f"/v1/ask?goal={quote(goal)}", says)
        for goal, says in GOALS
    ]  # fmt: skip
    with up_process(tmp_path) as server, server.client() as client:
        client.apply(ResourceDocument("---".join((TABLE, VIEW, SOURCE)), "test.yaml"))
        for words, call, path, says in [*asked, *OTHERS]:
            ran = CliRunner().invoke(app, ["--address", server.address("grpc"), *words])
            assert ran.exit_code != 0
            with pytest.raises(HTTPError) as refused, urlopen(f"{server.address('http')}{path}"):
                pass
            with pytest.raises(TidemillError) as raised:
                call(client)
            detail = json.loads(refused.value.read())["detail"]
            for surface, told in (
                ("command", ran.output), ("http", detail), ("grpc", str(raised.value)),
            ):  # fmt: skip
                assert says.lower() in " ".join(told.split()).lower(), (words, surface, told)
        with pytest.raises(UsageError, match=r"row 1 is of dict: .* json\.dumps"):
            client.push("events", ['{"n": 1}', {"n": 1}])  # type: ignore[list-item]


@pytest.mark.server
@pytest.mark.asyncio(loop_scope="session")
async def test_the_console_says_the_same(tmp_path: Path, chromium: Browser) -> None:
    async with web(tmp_path) as asked, console(chromium, asked.address) as page:
        await page.goto(f"{asked.address}/#/ask")
        for goal, says in GOALS:
            await page.get_by_label("Goal or collection").fill(goal)
            await page.get_by_role("button", name="Ask", exact=True).click()
            await expect(page.locator("main")).to_contain_text(says, timeout=30_000)
