"""Pages in somebody's browser neither push rows nor read metrics."""

from __future__ import annotations

from collections.abc import Mapping

import aiohttp
import pytest

from tidemill.runtime.clock import ManualClock
from tidemill.runtime.http_guard import HttpGuard, is_loopback
from tidemill.runtime.http_messages import HttpReply, HttpRequest
from tidemill.runtime.http_server import HttpServer
from tidemill.runtime.metrics import Metrics

OWN = HttpGuard(frozenset({"tidemill.example"}))


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "https://evil.example", "Content-Type": "text/plain"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Host": "evil.example:7475"}, 403),
        ({"Host": "10.0.0.7:7475"}, 403),
        ({"Host": "localhost.evil.example"}, 403),
        ({"Host": "[::1"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "multipart/form-data; boundary=x"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded", "Referer": "http://localhost/"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 200),
        ({"Content-Type": "application/json; charset=utf-8"}, 200),
        ({"Content-Type": "application/x-ndjson"}, 200),
        ({"Content-Type": "text/csv"}, 200),
        ({"Host": "tidemill.example"}, 200),
        ({"Host": "LOCALHOST:7475"}, 200),
        ({"Host": "[::1]:7475"}, 200),
    ],
)  # fmt: skip
async def test_a5_pages_of_other_origins_may_not_push(
    headers: Mapping[str, str], status: int
) -> None:
    pushed: list[bytes] = []

    async def push(request: HttpRequest) -> HttpReply:
        pushed.append(request.body)
        return HttpReply.json({})

    server = HttpServer("127.0.0.1", 0, Metrics(ManualClock()), guard=OWN)
    server.add_route("POST", "/rows", push)
    try:
        url = f"http://127.0.0.1:{await server.start()}/rows"
        sent = {"Content-Type": "application/json", **headers}
        async with (
            aiohttp.ClientSession() as session,
            session.post(url, data=b"{}\n", headers=sent) as reply,
        ):
            assert reply.status == status, await reply.text()
    finally:
        await server.close()
    assert pushed == ([b"{}\n"] if status == 200 else [])


@pytest.mark.parametrize(("host", "status"), [("evil.example:7475", 403), ("127.0.0.1", 200)])
async def test_a5_metrics_are_not_read_under_a_name_of_somebody_else(
    host: str, status: int
) -> None:
    server = HttpServer("127.0.0.1", 0, Metrics(ManualClock()), guard=OWN)
    try:
        url = f"http://127.0.0.1:{await server.start()}/metrics"
        async with (
            aiohttp.ClientSession() as session,
            session.get(url, headers={"Host": host}) as reply,
        ):
            assert reply.status == status
    finally:
        await server.close()


def test_a5_beyond_loopback_a_number_is_no_name_of_a_page() -> None:
    guard = HttpGuard(frozenset(), numbers=True)
    assert guard.refusal("GET", {"host": "10.0.0.7:7475"}) is None
    assert guard.refusal("GET", {"host": "[fd00::1]:7475"}) is None
    assert guard.refusal("GET", {"host": "evil.example"}) is not None


def test_a_link_of_another_page_may_be_followed_and_nothing_else() -> None:
    followed = {
        "host": "localhost",
        "sec-fetch-site": "cross-site",
        "sec-fetch-mode": "navigate",
        "sec-fetch-dest": "document",
    }
    assert OWN.refusal("GET", followed) is None
    for changed in (
        {"sec-fetch-dest": "iframe"},
        {"sec-fetch-mode": "no-cors"},
        {"origin": "https://evil.example"},
        {"host": "evil.example"},
    ):
        assert OWN.refusal("GET", {**followed, **changed}) is not None
    refused = OWN.refusal("POST", followed)
    assert refused is not None
    assert refused[0] == 403


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.0.1", "::1", "[::1]", "localhost", "unix"])
def test_a4_addresses_of_this_machine_are_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host", ["", "0.0.0.0", "::", "[::]", "10.0.0.1", "localhost.evil.example"]
)
def test_a4_every_other_address_is_not(host: str) -> None:
    assert not is_loopback(host)
