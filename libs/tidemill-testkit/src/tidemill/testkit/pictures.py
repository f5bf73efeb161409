"""Pictures of the console for docs/, of a whole system in a real browser: `make pictures`."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from functools import partial
from pathlib import Path

import pyarrow as pa
from playwright.async_api import Browser, Page, expect

from tidemill.rpc.messages import ResourceDocument
from tidemill.testkit.browsing import browser, console
from tidemill.testkit.web import Web, web

WIDTH = 1180
SHOWN_MS = 60_000
RULE = "worst(airline: a, delay: d) := late(p, d) ^ planes(p, a)"
DOCUMENTS = """
apiVersion: tidemill.dev/v1alpha1
kind: Table
metadata: {name: planes}
spec: {columns: [{name: plane, type: text}, {name: airline, type: text}], retain: all}
---
apiVersion: tidemill.dev/v1alpha1
kind: View
metadata: {name: airlines}
spec: {retain: all, program: "%s;"}
---
apiVersion: tidemill.dev/v1alpha1
kind: Action
metadata: {name: page-duty}
spec: {view: airlines, goal: "worst(a, d)", sink: {log: {topic: duty}}}
"""
PLANES = pa.table({"plane": ["N2", "N3"], "airline": ["UA", "AA"]})


async def draw(folder: Path) -> None:
    """Write the pictures of the console into a folder, as `console-NAME.png`.

    The one of a resource is as of an instant at which it had another definition than now.
    """
    with tempfile.TemporaryDirectory() as state:
        async with web(Path(state)) as asked, browser() as chromium:
            await _apply(asked, RULE)
            at = max((await asked.insert(PLANES, "planes")), await asked.insert())
            await asked.ask(f"/v1/collections/airlines/worst?as_of={at}&wait_s=60")
            shots = partial(_take, folder, asked.address, chromium)
            await shots("graph", "graph?at=View%2Fairlines", 400, "light", "keeps up")
            question = "ask?goal=worst(a,d)&record=worst(%22AA%22,30)"
            await shots("ask", question, 560, "light", "delays(")
            then = asked.whole.context.clock.now_ms()
            await _apply(asked, f"{RULE} if d >= 0")
            screen = f"resource?key=View%2Fairlines&t={then}"
            await shots("resource", screen, 760, "dark", f"{RULE};")


async def _apply(asked: Web, rule: str) -> None:
    await asked.whole.controller.apply([ResourceDocument(DOCUMENTS % rule, "pictures.yaml")])


async def _take(
    folder: Path, address: str, chromium: Browser,
    name: str, screen: str, height: int, scheme: str, shows: str,
) -> None:  # fmt: skip
    """Open a screen, and take its picture once it shows the text that its page tells of."""
    size = {"width": WIDTH, "height": height}
    async with console(chromium, address, viewport=size, color_scheme=scheme) as page:
        await page.goto(f"{address}/#/{screen}")
        await expect(page.locator("main")).to_contain_text(shows, timeout=SHOWN_MS)
        await _settle(page)
        await page.screenshot(path=folder / f"console-{name}.png")


async def _settle(page: Page) -> None:
    """Return behind two looks, which draw what the first one did not know."""
    for _ in range(2):
        async with page.expect_response("**/v1/resources?*"):
            pass
    await page.wait_for_timeout(500)


if __name__ == "__main__":
    asyncio.run(draw(Path(sys.argv[1])))
