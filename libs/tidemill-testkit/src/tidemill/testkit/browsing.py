"""A real browser for tests of pages: Debian's chromium, driven by playwright."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Page, async_playwright

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]}
"""Rules of axe that a page has to keep."""


@asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    """A browser of this machine. Fails where none is installed."""
    found = next(filter(None, map(shutil.which, CHROMIUM)), None)
    assert found is not None, "chromium is missing: infra/setup.sh browser"
    async with async_playwright() as driver:
        started = await driver.chromium.launch(
            executable_path=found, args=["--no-sandbox", "--disable-gpu"]
        )
        try:
            yield started
        finally:
            await started.close()


@asynccontextmanager
async def window(started: Browser, **settings: Any) -> AsyncIterator[Page]:
    """A page in a window of its own, with nothing that other windows have stored."""
    async with await started.new_context(**settings) as context:
        yield await context.new_page()


@asynccontextmanager
async def console(started: Browser, address: str, **settings: Any) -> AsyncIterator[Page]:
    """The console in a window of its own; what a page must not do fails the test at its end."""
    size: Any = {"width": 1280, "height": 800}
    async with window(started, **{"viewport": size, **settings}) as page:
        faults: list[str] = []
        foreign: list[str] = []
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda told: faults.append(told.text) if "Policy" in told.text else None)
        page.on(
            "request",
            lambda sent: None if sent.url.startswith(address) else foreign.append(sent.url),
        )
        page.set_default_timeout(30_000)
        yield page
        assert not faults, faults
        assert not foreign, foreign


async def barriers(page: Page) -> list[str]:
    """The findings of axe on the page, with the elements."""
    found = await Axe().run(page, options=RULES)
    return [
        f"{each['id']}: {[node['html'][:200] for node in each['nodes']]}"
        for each in found.response["violations"]
    ]
