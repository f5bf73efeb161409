"""Calls of a hostile user within its limits, and questions of a friendly one meanwhile, each in a
process of its own.

Both are asynchronous. The friend asks at a steady rate, whatever has been answered. The attacker
has a number of calls under way all the time, and counts how they ended.
"""

from __future__ import annotations

import asyncio
import gzip
import random
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from tidemill.errors import TidemillError
from tidemill.rpc.channel import Dialer
from tidemill.rpc.client import AsyncClient
from tidemill.rpc.messages import ResourceDocument
from tidemill.rpc.tls import TlsFiles

HEAD = "apiVersion: tidemill.dev/v1alpha1\n"
KEYS = 200_000
"""Rows of the source that the friend asks about."""
NODES = 250
"""Nodes of the chain whose closure is a view of the hostile user."""
CALLS_PER_S = 10
"""Questions of the friend in a second."""


@dataclass(frozen=True)
class Place:
    """The addresses of the server, and the files of its users."""

    grpc: str
    http: str
    authority: Path
    keys: Path

    def dialer(self, user: str) -> Dialer:
        """The dialer of a user."""
        return Dialer(TlsFiles(authority=self.authority), token_file=self.keys / f"{user}.token")

    def client(self, user: str) -> AsyncClient:
        """A connection of its own."""
        return AsyncClient(self.grpc, dialer=self.dialer(user), timeout_s=60.0)


Attack = Callable[[Place, AsyncClient, random.Random], Awaitable[object]]
"""One call, or what belongs together."""


def told_wrong() -> str:
    """A document that is refused once all before it have been read and planned."""
    return f"{HEAD}kind: Arrangement\nmetadata: {{name: eve-last}}\nspec: {{collection: eve-none, key: [n]}}\n"


def long_document() -> str:
    """The longest document that is taken: many tables, the last of them wrong."""
    columns = ", ".join(f"{{name: c{n}, type: int}}" for n in range(20))
    table = f"{HEAD}kind: Table\nmetadata: {{name: eve-%d}}\nspec: {{columns: [{columns}]}}\n---\n"
    each = len(table) + 4
    return "".join(table % n for n in range((1_000_000 - 300) // each)) + told_wrong()


def long_program(salt: int) -> str:
    """A view whose program is as long as one may be, and different each time."""
    lines, size = [], 0
    while size < 60_000:
        number = len(lines)
        line = f"    r{number}(x, z) := edge(x, y) ^ edge(y, z) if x + {salt + number} < z;"
        lines.append(line)
        size += len(line)
    body = "\n".join(lines)
    return (
        f"{HEAD}kind: View\nmetadata: {{name: eve-view}}\nspec:\n  inputs: {{edge: eve-edge}}\n"
        f"  program: |\n{body}\n---\n{told_wrong()}"
    )


def deep_yaml() -> str:
    """Flow sequences in each other, and many short ones."""
    return (
        f"{HEAD}kind: Table\nmetadata: {{name: eve-deep}}\nspec: " + "[" * 150 + "[],\n" * 200_000
    )


async def documents(place: Place, client: AsyncClient, rng: random.Random) -> None:
    await client.apply([ResourceDocument(long_document(), "long.yaml")])


async def programs(place: Place, client: AsyncClient, rng: random.Random) -> None:
    await client.apply([ResourceDocument(long_program(rng.randrange(1 << 30)), "program.yaml")])


async def apply_nested(place: Place, client: AsyncClient, rng: random.Random) -> None:
    await client.apply([ResourceDocument(deep_yaml(), "deep.yaml")])


async def reasons(place: Place, client: AsyncClient, rng: random.Random) -> None:
    await client.why(f"eve-reach/path({rng.randrange(5)}, {NODES - 1 - rng.randrange(5)})")


async def absences(place: Place, client: AsyncClient, rng: random.Random) -> None:
    await client.why_not(f"eve-reach/path({NODES - 1}, {rng.randrange(NODES - 1)})")


async def large_reasons(place: Place, client: AsyncClient, rng: random.Random) -> None:
    await client.why_not("eve-sums/total(7, 7)")


async def analyses(place: Place, client: AsyncClient, rng: random.Random) -> None:
    await client.explain("eve-reach", "analyze")


async def scans(place: Place, client: AsyncClient, rng: random.Random) -> None:
    if rng.random() < 0.5:
        await client.snapshot("current/now")
    else:
        await client.ask("current/now(k, k)")


async def joins(place: Place, client: AsyncClient, rng: random.Random) -> None:
    """The calls that a cross join in SQL makes: whole collections."""
    await client.tables(["current/now", "readings", "eve-reach/path"])


async def subscriptions(place: Place, client: AsyncClient, rng: random.Random) -> None:
    goal = "eve-reach/path" if rng.random() < 0.98 else "current/now"
    async with asyncio.timeout(5.0), aclosing(client.subscribe(goal)) as events:
        async for _ in events:
            pass


async def pushes(place: Place, client: AsyncClient, rng: random.Random) -> None:
    row = b'{"n": %d}' % rng.randrange(1000)
    await client.push("eve-source", [row] * 200_000)


async def bodies(place: Place, client: AsyncClient, rng: random.Random) -> None:
    await _post(place, b"1\n" * (8 << 20), {})


async def push_packed(place: Place, client: AsyncClient, rng: random.Random) -> None:
    body = gzip.compress(bytes(16 << 20), 1)
    await _post(place, body, {"Content-Encoding": "gzip"})


async def churn(place: Place, client: AsyncClient, rng: random.Random) -> None:
    async with place.client("eve") as fresh:
        await fresh.ask("eve-reach/path(1, x)")


async def texts(place: Place, client: AsyncClient, rng: random.Random) -> None:
    """Questions that are hard to read: deep, long, of marks that have to be put in order."""
    marks = "a" + "\u0315\u0300\u05ae\u0300\u0062" * 5
    hard = (
        "current/now(" + "(" * 190 + "1" + ")" * 190 + ", x)",
        "current/now(" + "+".join(["1"] * 4_000) + ", x)",
        'current/now("' + "".join(marks + "b" for _ in range(200)) + '", x)',
        "current/now(" + ", ".join(f"x{n}" for n in range(2_500)) + ")",
    )
    await client.ask(rng.choice(hard)[:16_000])


async def calls(place: Place, client: AsyncClient, rng: random.Random) -> None:
    await client.ask("eve-reach/path(1, x)")


async def _post(place: Place, body: bytes, headers: dict[str, str]) -> None:
    token = (place.keys / "eve.token").read_text()
    context = ssl.create_default_context(cafile=str(place.authority))
    connector = aiohttp.TCPConnector(ssl=context)
    async with aiohttp.ClientSession(connector=connector) as session:
        url = f"{place.http}/v1/sources/eve-source/rows"
        told = {"Authorization": f"Bearer {token}", "Content-Type": "application/json", **headers}
        async with session.post(url, data=body, headers=told) as answer:
            if answer.status >= 300:
                raise HttpRefused(str(answer.status))


class HttpRefused(TidemillError):
    """An answer over HTTP that is none of success; its message is the status."""


ATTACKS: dict[str, tuple[Attack, int]] = {
    "documents": (documents, 8),
    "programs": (programs, 8),
    "nested": (apply_nested, 8),
    "reasons": (reasons, 16),
    "absences": (absences, 16),
    "large-reasons": (large_reasons, 8),
    "analyses": (analyses, 8),
    "scans": (scans, 16),
    "joins": (joins, 8),
    "subscriptions": (subscriptions, 300),
    "pushes": (pushes, 8),
    "bodies": (bodies, 8),
    "packed": (push_packed, 8),
    "churn": (churn, 16),
    "texts": (texts, 32),
    "calls": (calls, 64),
}
"""Each attack, and how many of it are under way at once."""


def code_of(error: Exception) -> str:
    """The answer to a caller, in a word; with the limit, where it was one."""
    if isinstance(error, HttpRefused):
        return str(error)
    setting = error.details.get("setting") if isinstance(error, TidemillError) else None
    return f"{type(error).__name__}{f' ({setting})' if setting else ''}"


async def attack(place: Place, names: list[str], seconds: float, seed: int) -> dict[str, int]:
    """All of these attacks for so long; how their calls ended."""
    rng, ended = random.Random(seed), Counter[str]()

    async def again(one: Attack, client: AsyncClient) -> None:
        while True:
            try:
                await one(place, client, rng)
                ended["OK"] += 1
            except (TidemillError, aiohttp.ClientError, TimeoutError) as error:
                ended[code_of(error)] += 1
                await asyncio.sleep(0.01)

    clients = [place.client("eve") for _ in range(4)]
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
            for name in names:
                one, at_once = ATTACKS[name]
                for number in range(at_once):
                    group.create_task(again(one, clients[number % len(clients)]))
    for client in clients:
        await client.close()
    return dict(ended)


async def befriend(place: Place, seconds: float, seed: int) -> dict[str, list[float]]:
    """Milliseconds from when each question was due to its answer: points, and points as of some
    seconds ago.
    """
    rng = random.Random(seed)
    took: dict[str, list[float]] = {"point": [], "asof": [], "failed": []}

    async def ask(client: AsyncClient, kind: str, due_s: float) -> None:
        key = rng.randrange(KEYS)
        back_ms = int(time.time() * 1000) - 8_000 if kind == "asof" else None
        try:
            answer = await client.ask(f"current/now({key}, v)", back_ms)
            assert answer.table.num_rows == 1
        except TidemillError:
            took["failed"].append(float("inf"))
            kind = kind if back_ms is None else "asof"
        took[kind].append((time.perf_counter() - due_s) * 1000)

    async with place.client("ann") as client:
        for _ in range(10):
            await ask(client, "point", time.perf_counter())
        for kind in took.values():
            kind.clear()
        began_s = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            async for number in _due(began_s, seconds):
                kind = "asof" if number % 2 else "point"
                group.create_task(ask(client, kind, began_s + number / CALLS_PER_S))
    return took


async def _due(began_s: float, seconds: float) -> AsyncIterator[int]:
    """The number of each question, when it is due."""
    for number in range(int(seconds * CALLS_PER_S)):
        await asyncio.sleep(max(0.0, began_s + number / CALLS_PER_S - time.perf_counter()))
        yield number
