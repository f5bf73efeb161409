"""HTTP servers of a run: a schema registry and a target of alarms, which sometimes answer
poison.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random  # noqa: TID251  seeded

from aiohttp import web

from tidemill.testkit.http_endpoints import served
from tidemill.testkit.service_faults.outcome import FAULT, Outcome

POISONED_SHARE = 0.2
ANSWERS = ("garbage", "gzip bomb", "half an answer", "error 500")
BOMB_BYTES = 256 << 20
GRAIN_SCHEMA = {
    "type": "record", "name": "R",
    "fields": [
        {"name": "n", "type": "int"},
        {"name": "d", "type": {"type": "int", "logicalType": "date"}},
        {"name": "next", "type": ["null", "R"]},
        {"name": "z", "type": {"type": "array", "items": "null"}},
    ],
}  # fmt: skip
"""Recursive, with items of no bytes: all that a value can be made too deep or too long by."""


@dataclass(slots=True)
class Endpoints:
    """A server on a port of its own; whoever makes the run says which seed and where to count."""

    url: str = ""
    random: Random = field(default_factory=lambda: Random(0))
    outcome: Outcome = field(default_factory=Outcome)
    done: dict[str, bytes] = field(default_factory=dict)
    """Received effects by key: the same key again is the same effect."""
    _answered: dict[str, int] = field(default_factory=dict)
    _bomb: bytes = b""

    def poisoned(self, who: str) -> web.Response | None:
        """Poison instead of an answer: each kind first, then at random."""
        number = self._answered[who] = self._answered.get(who, -1) + 1
        if number >= len(ANSWERS) and self.random.random() >= POISONED_SHARE:
            return None
        kind = ANSWERS[number] if number < len(ANSWERS) else self.random.choice(ANSWERS)
        self.outcome.happened[f"{FAULT}{who} answers {kind}"] += 1
        if kind == "error 500":
            return web.Response(status=500, body=b"\xff{")
        if kind == "garbage":
            return web.Response(body=b"\xff\x00{" + self.random.randbytes(1_000))
        if kind == "half an answer":
            return web.Response(body=b'{"schema": "{', headers={"Connection": "close"})
        self._bomb = self._bomb or gzip.compress(bytes(BOMB_BYTES), 1)
        return web.Response(body=self._bomb, headers={"Content-Encoding": "gzip"})

    async def schema(self, _: web.Request) -> web.Response:
        """The only schema."""
        return self.poisoned("registry") or web.json_response({"schema": json.dumps(GRAIN_SCHEMA)})

    async def receive(self, request: web.Request) -> web.Response:
        """Done once for each key, whatever is answered."""
        self.done.setdefault(request.headers["Idempotency-Key"], await request.read())
        return self.poisoned("target") or web.Response(status=204)


@asynccontextmanager
async def endpoints() -> AsyncIterator[Endpoints]:
    """Both on a free port of this machine."""
    made = Endpoints()
    schemas, alarms = web.get("/schemas/ids/1", made.schema), web.post("/alarms", made.receive)
    async with served(schemas, alarms) as made.url:
        yield made
