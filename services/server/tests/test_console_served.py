"""The console of a real server with TLS and tokens, as a forwarded port shows it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from playwright.async_api import expect

from tidemill.testkit.browsing import browser
from tidemill.testkit.certificates import Certificates
from tidemill.testkit.up import UpProcess, up_process
from tidemill.testkit.web import TABLE, VIEW

TOKEN = hashlib.sha256(b"a token of this test").hexdigest()


def settings(folder: Path) -> Path:
    """A file of settings: TLS on both ports, and one user who may do everything."""
    pair = Certificates.of(folder).issued("server")
    grants = [{"role": "admin", "collections": ["*"]}]
    digest = hashlib.sha256(TOKEN.encode()).hexdigest()
    users = {"users": [{"name": "ann", "sha256": digest, "grants": grants}]}
    (folder / "users.yaml").write_text(json.dumps(users))
    tls = {"certificate": str(pair.certificate), "key": str(pair.key)}
    told = {"tls": tls, "http_tls": tls, "token_file": str(folder / "users.yaml")}
    (folder / "settings.yaml").write_text(json.dumps(told))
    (folder / "all.yaml").write_text(f"{TABLE}---{VIEW}")
    return folder / "settings.yaml"


async def sign_in_and_use(server: UpProcess) -> None:
    """Sign in, insert a row, see it in the answer, and again once the page is loaded anew."""
    address = server.address("http").replace("127.0.0.1", "localhost")
    assert address.startswith("https://")
    async with browser() as started:
        context = await started.new_context(ignore_https_errors=True)
        page = await context.new_page()
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


@pytest.mark.server
async def test_a_server_with_tls_and_tokens_is_used_from_a_browser(tmp_path: Path) -> None:
    expect.set_options(timeout=60_000)
    words = ("--config", str(settings(tmp_path)), "-f", "all.yaml")
    with up_process(tmp_path, *words) as server:
        await sign_in_and_use(server)
