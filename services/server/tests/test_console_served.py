"""The console of a real server with TLS and tokens, as a forwarded port shows it."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path

import aiohttp
import pytest
from playwright.async_api import Browser, expect

from tidemill.testkit.browsing import window
from tidemill.testkit.certificates import Certificates
from tidemill.testkit.up import UpProcess, up_process
from tidemill.testkit.web import TABLE, VIEW

pytestmark = [pytest.mark.server, pytest.mark.asyncio(loop_scope="session")]

READER = hashlib.sha256(b"a reader of this test").hexdigest()
TOKEN = hashlib.sha256(b"a token of this test").hexdigest()


def settings(folder: Path) -> Path:
    """A file of settings: TLS on both ports, a user who may do everything, and a reader."""
    pair = Certificates.of(folder).issued("server")
    grants = [{"role": "admin", "collections": ["*"]}]
    digest = hashlib.sha256(TOKEN.encode()).hexdigest()
    reader = {
        "name": "rita",
        "sha256": hashlib.sha256(READER.encode()).hexdigest(),
        "grants": [{"role": "reader", "collections": ["*"]}],
    }
    users = {"users": [{"name": "ann", "sha256": digest, "grants": grants}, reader]}
    (folder / "users.yaml").write_text(json.dumps(users))
    tls = {"certificate": str(pair.certificate), "key": str(pair.key)}
    told = {"tls": tls, "http_tls": tls, "token_file": str(folder / "users.yaml")}
    (folder / "settings.yaml").write_text(json.dumps(told))
    (folder / "all.yaml").write_text(f"{TABLE}---{VIEW}")
    return folder / "settings.yaml"


async def sign_in_and_use(server: UpProcess, chromium: Browser) -> None:
    """Sign in, insert a row, see it in the answer, and again once the page is loaded anew."""
    address = server.address("http").replace("127.0.0.1", "localhost")
    assert address.startswith("https://")
    async with window(chromium, ignore_https_errors=True) as page:
        page.set_default_timeout(60_000)
        await page.goto(address)
        await page.get_by_label("Token", exact=True).fill("a wrong token of somebody")
        await page.get_by_role("button", name="Use it").click()
        await expect(page.locator("#said")).to_contain_text("give a token")
        await page.get_by_role("button", name="Token", exact=True).click()
        await page.get_by_label("Token", exact=True).fill(TOKEN)
        await page.get_by_role("button", name="Use it").click()
        await expect(page.get_by_role("button", name="View late")).to_be_visible()
        await page.goto(f"{address}/#/insert?key=Table%2Fdelays")
        await page.get_by_label("Rows").fill('{"plane": "N7", "delay": 77}')
        await page.get_by_role("button", name="Insert").click()
        await expect(page.locator(".done")).to_contain_text("1 rows are in delays")
        await page.goto(f"{address}/#/ask?goal=late(p, d)")
        await page.get_by_label("follow").check()
        await expect(page.get_by_role("region", name="Answer")).to_contain_text("N7")
        await page.reload()  # the token is the tab's
        await expect(page.get_by_role("region", name="Answer")).to_contain_text("N7")


class Forward:
    """A forwarded port, as kubectl keeps one: TCP alone, by another port, and cut at any time."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._carried: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.port = 0
        self.count = 0

    async def start(self) -> None:
        """Listen, at the same port each time."""
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def cut(self) -> None:
        """End every connection, and listen no more."""
        assert self._server is not None
        self._server.close()
        for task in self._carried:
            task.cancel()
        await asyncio.gather(*self._carried, return_exceptions=True)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.count += 1
        there, back = await asyncio.open_connection("127.0.0.1", self._to)
        for source, sink in ((reader, back), (there, writer)):
            task = asyncio.create_task(_carry(source, sink))
            self._carried.add(task)
            task.add_done_callback(self._carried.discard)


async def _carry(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    """Carry bytes until either side ends."""
    try:
        while data := await source.read(1 << 16):
            sink.write(data)
            await sink.drain()
    except OSError:
        pass
    finally:
        sink.transport.abort()


async def test_a_reader_follows_through_a_forwarded_port_that_is_cut(
    tmp_path: Path, chromium: Browser
) -> None:
    """The address that the browser knows has neither the name nor the port of the server."""
    expect.set_options(timeout=60_000)
    words = ("--config", str(settings(tmp_path)), "-f", "all.yaml")
    with up_process(tmp_path, *words) as server:
        direct = server.address("http").replace("127.0.0.1", "localhost")
        forward = Forward(int(direct.rpartition(":")[2]))
        await forward.start()
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}

        async def insert(plane: str) -> None:
            url, row = f"{direct}/v1/tables/delays/rows", json.dumps({"plane": plane, "delay": 50})
            async with (
                aiohttp.ClientSession() as session,
                session.post(url, data=row, headers=headers, ssl=False) as said,
            ):
                assert said.status == 200, await said.read()

        await insert("N1")
        async with window(chromium, ignore_https_errors=True) as page:
            page.set_default_timeout(60_000)
            await page.goto(f"https://localhost:{forward.port}/#/ask?goal=late(p, d)")
            await page.get_by_label("Token", exact=True).fill(READER)
            await page.get_by_role("button", name="Use it").click()
            answer = page.get_by_role("region", name="Answer")
            await page.get_by_label("follow").check()
            await expect(answer).to_contain_text("N1")
            for number in range(2, 5):
                before = forward.count
                await forward.cut()
                await insert(f"N{number}")
                await forward.start()
                await expect(answer).to_contain_text(f"N{number}")
                assert forward.count > before
            copies = answer.locator("tbody tr td:last-child")
            assert await copies.all_text_contents() == ["1"] * 4
            await page.goto(f"https://localhost:{forward.port}/#/insert?key=Table%2Fdelays")
            await page.get_by_label("Rows").fill('{"plane": "N9", "delay": 90}')
            await page.get_by_role("button", name="Insert").click()
            await expect(page.get_by_role("alert")).to_contain_text("needs the role writer")
        await forward.cut()


async def test_a_server_with_tls_and_tokens_is_used_from_a_browser(
    tmp_path: Path, chromium: Browser
) -> None:
    expect.set_options(timeout=60_000)
    words = ("--config", str(settings(tmp_path)), "-f", "all.yaml")
    with up_process(tmp_path, *words) as server:
        await sign_in_and_use(server, chromium)
