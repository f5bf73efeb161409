"""The console on a timeline of events, whose instants are none of a wall clock."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.async_api import Browser, Route, expect

from tidemill.rpc.messages import ResourceDocument
from tidemill.testkit.browsing import console
from tidemill.testkit.web import Web, web

pytestmark = [pytest.mark.server, pytest.mark.asyncio(loop_scope="session")]
expect.set_options(timeout=30_000)

EVENTS = """
apiVersion: tidemill.dev/v1alpha1
kind: Source
metadata: {name: flights}
spec:
  http: {}
  columns: [{name: plane, type: text}, {name: delay, type: int}, {name: at, type: int}]
  retain: all
  eventTime: {column: at, timeline: air, expiresAfter: 1h, skew: 1s}
---
apiVersion: tidemill.dev/v1alpha1
kind: View
metadata: {name: tardy}
spec: {retain: all, inputs: {flight: flights}, program: "tardy(p, d) := flight(p, d, _) if d > 30;"}
"""
UNTIL = 9_000
"""The time of the last row: the timeline is definite before one second less."""


async def push(asked: Web) -> None:
    """Push rows, and return once the view is definite as far as they say."""
    rows = [{"plane": "N2", "delay": 45, "at": 2_000}, {"plane": "N3", "delay": 5, "at": UNTIL}]
    body = "\n".join(map(json.dumps, rows))
    lines = {"Content-Type": "application/x-ndjson"}
    said = await asked.ask("/v1/sources/flights/rows", "POST", data=body, headers=lines)
    assert said.status < 300, said.body
    said = await asked.ask(f"/v1/collections/tardy/tardy?as_of={UNTIL - 1_001}&wait_s=60")
    assert said.status == 200, said.body


async def test_an_instant_of_events_has_the_definition_by_which_it_became_definite(
    tmp_path: Path, chromium: Browser
) -> None:
    async with web(tmp_path) as asked, console(chromium, asked.address) as page:
        controller = asked.whole.controller
        await controller.apply([ResourceDocument(EVENTS, "test.yaml")])
        before = (await asked.ask("/v1/frontiers/tardy/tardy")).json[-1]
        assert before["upper"] <= 1_000
        await push(asked)
        now_ms = asked.whole.context.clock.now_ms
        then = now_ms()

        async def looks(route: Route) -> None:
            """A process that looked just before the rows came, just after, and now."""
            told = [
                {"at_ms": then - 1_000, "since": 0, "upper": 1},
                {"at_ms": then, "since": 0, "upper": UNTIL - 1_000},
                {"at_ms": now_ms(), "since": 0, "upper": UNTIL - 1_000},
            ]
            await route.fulfill(json=told)

        await page.route("**/v1/frontiers/**", looks)
        await controller.apply([ResourceDocument(EVENTS.replace("d > 30", "d > 40"), "test.yaml")])
        await page.goto(f"{asked.address}/#/resource?key=View%2Ftardy")
        defined, exactly = page.get_by_label("Definition"), page.get_by_label("exactly")
        heading = page.locator("main h3", has_text="Definition")
        await expect(defined).to_contain_text("d > 40")
        await exactly.fill("2500")
        await exactly.press("Enter")
        await expect(page.locator("#t-said")).to_contain_text("air")
        await expect(defined).to_contain_text("d > 30")
        await expect(heading).to_contain_text("as of 2")
        await expect(page.locator("main dl").first).to_contain_text("between")
        # No look says when an instant to come will be definite: its definition is that of now.
        await exactly.fill(str(UNTIL))
        await exactly.press("Enter")
        await expect(defined).to_contain_text("d > 40")
        await expect(heading).to_have_text("Definition now")
