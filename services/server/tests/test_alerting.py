"""One declaration that begins, changes and ends an alert, told to real servers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import aiohttp
import pyarrow as pa
import pytest
from aiohttp import web
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

from tidemill.errors import UsageError
from tidemill.rpc.messages import ResourceDocument
from tidemill.runtime.places import PlaceSettings
from tidemill.runtime.places.settings import SecretSettings
from tidemill.testkit.http_endpoints import served
from tidemill.testkit.servers import alertmanager_server
from tidemill.testkit.whole import Whole, opened
from tidemill_server.settings import ServerSettings

pytestmark = pytest.mark.filterwarnings("ignore:Requiring AUTH while not requiring TLS")

HEAD = "apiVersion: tidemill.dev/v1alpha1\n"
WORLD = f"""{HEAD}kind: Table
metadata: {{name: ovens}}
spec: {{retain: all, columns: [{{name: oven, type: text}}, {{name: degrees, type: int}}]}}
---
{HEAD}kind: View
metadata: {{name: heat}}
spec:
  retain: all
  program: "hot(oven: o) @max(d) := ovens(oven: o, degrees: d) if d > 200;"
"""


def action(name: str, sink: str, follow: bool = True) -> str:
    return (
        f"{HEAD}kind: Action\nmetadata: {{name: {name}}}\n"
        f'spec: {{view: heat, goal: "hot(o) @max(d)", follow: {str(follow).lower()}, '
        f"fireFrom: beginning, sink: {sink}}}\n"
    )


@asynccontextmanager
async def running(folder: Path, **secrets: str) -> AsyncIterator[Whole]:
    kept = {}
    for name, text in secrets.items():
        (folder / name).write_text(text)
        kept[name] = SecretSettings(str(folder / name), ("127.0.0.1",))
    settings = ServerSettings(
        directory=str(folder / "state"), places=PlaceSettings(secrets=kept),
        retry_s_min=0.05, retry_s_max=0.2,
    )  # fmt: skip
    async with opened(settings) as process:
        await process.start()
        yield process


async def apply(process: Whole, *texts: str) -> None:
    await process.controller.apply([ResourceDocument("---\n".join(texts), "all.yaml")])


async def change(process: Whole, *rows: tuple[str, int, int]) -> None:
    """Add rows, and take some away: oven, degrees, difference."""
    ovens, degrees, diffs = zip(*rows, strict=True)
    await process.controller.insert(
        "ovens", pa.table({"oven": ovens, "degrees": degrees, "_diff": pa.array(diffs, pa.int64())})
    )


async def until(holds: Callable[[], Awaitable[Any]]) -> Any:
    """The first value of it that is true."""
    async with asyncio.timeout(60):
        while not (found := await holds()):
            await asyncio.sleep(0.05)
    return found


class Mailboxes:
    """A handler of a real mail server: it keeps what it takes, after a login."""

    def __init__(self) -> None:
        self.mails: list[EmailMessage] = []
        self.refused = 0

    async def handle_RCPT(  # noqa: N802  named by aiosmtpd
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        if address.startswith("nobody@"):
            self.refused += 1
            return "550 no such user"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(  # noqa: N802
        self, server: SMTP, session: Session, envelope: Envelope
    ) -> str:
        assert isinstance(envelope.content, bytes)
        made = message_from_bytes(envelope.content, policy=policy.default)
        assert isinstance(made, EmailMessage)
        self.mails.append(made)
        return "250 OK"

    def login(self, server: SMTP, session: Session, *asked: Any) -> AuthResult:
        given = asked[-1]
        good = isinstance(given, LoginPassword) and given.password == b"hush"
        return AuthResult(success=good, handled=False)

    @asynccontextmanager
    async def served(self) -> AsyncIterator[str]:
        def protocol() -> SMTP:
            return SMTP(self, auth_required=True, auth_require_tls=False, authenticator=self.login)

        server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0)
        async with server:
            yield f"smtp://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_mails_of_an_event_are_one_thread_from_its_beginning_to_its_end(
    tmp_path: Path,
) -> None:
    boxes = Mailboxes()
    async with boxes.served() as server, running(tmp_path, mail="hush") as process:
        sink = (
            f'{{email: {{server: "{server}", sender: mill@x.example, to: [a@x.example], '
            'username: mill, secret: mail, subject: "${phase} ${arg.oven}", text: "${record}"}}'
        )
        await apply(process, WORLD, action("tell", sink))
        await change(process, ("A", 220, 1))
        await until(lambda: _there(len(boxes.mails) == 1))
        await change(process, ("A", 220, -1), ("A", 240, 1))
        await until(lambda: _there(len(boxes.mails) == 2))
        await change(process, ("A", 240, -1))
        await until(lambda: _there(len(boxes.mails) == 3))
    first, *others = boxes.mails
    assert [mail["Subject"] for mail in boxes.mails] == ["begin A", "change A", "end A"]
    assert {mail["References"] for mail in others} == {first["Message-ID"]}
    assert "@max(240)" in others[0].get_content()


async def test_a_message_has_the_proof_as_of_its_instant_and_of_an_end_the_one_before(
    tmp_path: Path,
) -> None:
    boxes = Mailboxes()
    async with boxes.served() as server, running(tmp_path, mail="hush") as process:
        sink = (
            f'{{email: {{server: "{server}", sender: mill@x.example, to: [a@x.example], '
            'username: mill, secret: mail, text: "${proof}"}}'
        )
        # Nothing but the action itself keeps the history of the inputs.
        await apply(process, WORLD.replace("retain: all, ", ""), action("tell", sink))
        await change(process, ("A", 220, 1))
        await until(lambda: _there(len(boxes.mails) == 1))
        await change(process, ("A", 220, -1))
        await until(lambda: _there(len(boxes.mails) == 2))
        for mail in boxes.mails:
            first, *below = mail.get_content().splitlines()
            assert first.startswith('hot("A") @max(220)  [at '), mail.get_content()
            assert "rule 1: hot(oven: o) @max(d) :=" in first
            assert [line for line in below if 'ovens("A", 220)  [input]' in line]
        holders = (await process.context.collections.status("ovens")).holders
        assert "action:tell" in {holder.owner for holder in holders}
        await process.controller.delete("Action", "tell")
        holders = (await process.context.collections.status("ovens")).holders
        assert "action:tell" not in {holder.owner for holder in holders}


async def _there(found: bool) -> bool:
    return found


@pytest.mark.parametrize(
    ("to", "password", "says"),
    [("nobody@x.example", "hush", "550: the receivers"), ("a@x.example", "loud", "535")],
)
async def test_a_mail_that_is_refused_for_good_stalls_the_action_and_says_why(
    to: str, password: str, says: str, tmp_path: Path
) -> None:
    boxes = Mailboxes()
    async with boxes.served() as server, running(tmp_path, mail=password) as process:
        sink = (
            f'{{email: {{server: "{server}", sender: mill@x.example, to: ["{to}"], '
            "username: mill, secret: mail}}"
        )
        await apply(process, WORLD, action("tell", sink))
        await change(process, ("A", 220, 1))

        async def refusal() -> str:
            status = await process.controller.describe("Action", "tell")
            return status.message if "answered" in status.message else ""

        message = await until(refusal)
    assert says in message
    assert password not in message
    assert not boxes.mails


@pytest.mark.server
async def test_an_alert_lasts_as_long_as_its_event_whatever_the_alertmanager_forgets(
    tmp_path: Path,
) -> None:
    with alertmanager_server("alerting") as alerts:

        async def active() -> dict[str, str]:
            """Summaries by oven of what is alerted now."""
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"{alerts.address}/api/v2/alerts?active=true") as answer,
            ):
                found = await answer.json()
            return {a["labels"]["oven"]: a["annotations"]["summary"] for a in found}

        async def are(expected: dict[str, str]) -> bool:
            return await active() == expected

        async with running(tmp_path) as process:
            sink = f'{{alertmanager: {{url: "{alerts.address}", summary: "${{record}}", repeat: 500ms}}}}'
            await apply(process, WORLD, action("page", sink))
            await change(process, ("A", 220, 1), ("B", 250, 1))
            both = {"A": 'hot("A") @max(220)', "B": 'hot("B") @max(250)'}
            await until(lambda: are(both))
            await change(process, ("A", 220, -1), ("A", 300, 1), ("B", 250, -1))
            await until(lambda: are({"A": 'hot("A") @max(300)'}))
            alerts.control("down")
            alerts.control("wipe")
            alerts.control("up", "--port", alerts.address.rpartition(":")[2])
            await until(lambda: are({"A": 'hot("A") @max(300)'}))
            await change(process, ("A", 300, -1))
            await until(lambda: are({}))


async def test_pagers_chats_and_functions_are_told_in_their_own_words(tmp_path: Path) -> None:
    told: dict[str, list[tuple[dict[str, str], Any]]] = {}

    async def take(request: web.Request) -> web.Response:
        headers, body = dict(request.headers), await request.read()
        told.setdefault(request.path, []).append((headers, json.loads(body)))
        return web.Response(status=202)

    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(served(web.route("*", "/{name}", take)))
        process = await stack.enter_async_context(
            running(tmp_path, pager="routing", chat=f"{url}/chat", sign="whsec_c2VjcmV0")
        )
        body = '{"oven": "${arg.oven}", "at": "${instant}"}'
        await apply(
            process, WORLD,
            action("pager", f'{{pagerDuty: {{routingKey: pager, url: "{url}/pager"}}}}'),
            action("chat", "{slack: {webhook: chat}}", follow=False),
            action("events", f'{{cloudEvents: {{url: "{url}/events"}}}}'),
            action("own", f'{{http: {{url: "{url}/own", method: PUT, headers: {{X-Mill: a}}, '
                          f"signature: sign, body: '{body}'}}}}", follow=False),
        )  # fmt: skip
        await change(process, ("A", 220, 1))
        await change(process, ("A", 220, -1))

        async def all_told() -> bool:
            return [len(told.get(f"/{n}", [])) for n in ("pager", "events", "chat", "own")] == [
                2, 2, 1, 1,
            ]  # fmt: skip

        await until(all_told)
    pages = [body for _, body in told["/pager"]]
    assert [page["event_action"] for page in pages] == ["trigger", "resolve"]
    assert len({page["dedup_key"] for page in pages}) == 1
    assert {page["routing_key"] for page in pages} == {"routing"}
    assert [body["type"] for _, body in told["/events"]] == [
        "dev.tidemill.event.begin", "dev.tidemill.event.end",
    ]  # fmt: skip
    assert told["/chat"][0][1]["text"] == 'chat begin: hot("A") @max(220)'
    ((headers, own),) = told["/own"]
    assert own["oven"] == "A"
    assert headers["X-Mill"] == "a"
    assert headers["webhook-id"] == headers["Idempotency-Key"]
    assert headers["webhook-signature"].startswith("v1,")


async def test_events_of_a_stretch_are_told_in_one_message_for_each_group(tmp_path: Path) -> None:
    told: list[tuple[str, Any]] = []

    async def take(request: web.Request) -> web.Response:
        told.append((request.headers["Idempotency-Key"], await request.json()))
        return web.Response(status=204)

    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(served(web.route("*", "/{name}", take)))
        process = await stack.enter_async_context(running(tmp_path))
        body = '{"line": "${arg.l}", "count": "${count}", "records": "${record}"}'
        sink = f"{{http: {{url: \"{url}/own\", body: '{body}'}}}}"
        world = WORLD.replace(
            "{name: oven, type: text}", "{name: line, type: text}, {name: oven, type: text}"
        )
        world = world.replace(
            "hot(oven: o) @max(d) := ovens(oven: o,",
            "hot(line: l, oven: o) @max(d) := ovens(line: l, oven: o,",
        )
        grouped = action("tell", sink, follow=False).replace("hot(o)", "hot(l, o)")
        grouped = grouped.replace("fireFrom", "group: {within: 1s, by: [line]}, fireFrom")
        with pytest.raises(UsageError, match="no argument l to tell; there is line"):
            await apply(process, world, grouped)
        await apply(process, world, grouped.replace("${arg.l}", "${arg.line}"))
        rows = {"line": ["x", "y", "x"], "oven": ["A", "B", "C"], "degrees": [220, 230, 240]}
        await process.controller.insert("ovens", pa.table(rows))
        await until(lambda: _there(len(told) == 2))
    assert [(body["line"], body["count"]) for _, body in told] == [("x", "2"), ("y", "1")]
    assert told[0][1]["records"].splitlines() == [
        'hot("x", "A") @max(220)',
        'hot("x", "C") @max(240)',
    ]
    assert len({key for key, _ in told}) == 2


@pytest.mark.parametrize(
    ("sink", "follow", "says"),
    [
        ('{alertmanager: {url: "http://127.0.0.1:1"}}', False, "would last for ever"),
        ('{http: {url: "http://127.0.0.1:1", body: "${nothing}"}}', True, "begins a placeholder"),
        (
            '{http: {url: "http://127.0.0.1:1", body: "${arg.door}", contentType: text/plain}}',
            True,
            "door",
        ),
        ('{http: {url: "http://127.0.0.1:1", body: "{x: ${record}}"}}', True, "no JSON"),
        ("{slack: {webhook: lost}}", True, "no secret lost"),
        (
            '{http: {url: "http://127.0.0.1:1", body: \'"${proof}"\'}}',
            None,
            "is of definite events",
        ),
    ],
)
async def test_what_cannot_be_told_is_refused_when_it_is_applied(
    sink: str, follow: bool | None, says: str, tmp_path: Path
) -> None:
    async with running(tmp_path) as process:
        await apply(process, WORLD)
        text = action("tell", sink, bool(follow))
        if follow is None:
            text = text.replace("follow: false", "eager: true")
        with pytest.raises(UsageError, match=says):
            await apply(process, text)
