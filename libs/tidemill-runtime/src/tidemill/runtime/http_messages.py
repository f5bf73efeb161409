"""Requests and replies of HTTP as services see them; aiohttp stays in the server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request as its route sees it: the parts of its path, the query, and the whole body.

    `query` has every value of a parameter, in order. An admission sees the request without its
    body, which is not read yet.
    """

    method: str
    path: str
    parts: Mapping[str, str]
    query: Mapping[str, tuple[str, ...]]
    headers: Mapping[str, str]
    body: bytes = b""
    remote: str = ""

    @property
    def sent(self) -> Mapping[str, str]:
        """The headers, with names in lower case."""
        return {name.lower(): value for name, value in self.headers.items()}


@dataclass(frozen=True, slots=True)
class HttpReply:
    """The answer of a route; a body in pieces is sent as the client takes it."""

    status: int = 200
    body: bytes | AsyncIterator[bytes] = b""
    content_type: str = "application/octet-stream"
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def json(cls, value: object, status: int = 200) -> HttpReply:
        """A reply with `value` as JSON."""
        return cls(status, json.dumps(value).encode() + b"\n", "application/json")


class BodyThrottle(Protocol):
    """Limits the rate at which the bodies of one caller are read."""

    def turns(self, reading: Awaitable[HttpReply | None]) -> Awaitable[HttpReply | None]:
        """Read in turns with the work of other users."""

    async def throttle(self, count: int) -> None:
        """Return when more may be read; `count` bytes have come since."""


Route = Callable[[HttpRequest], Awaitable[HttpReply]]
Exchange = Callable[[HttpRequest], AbstractAsyncContextManager[HttpReply]]
"""A route that lasts until its reply is sent."""
Admission = Callable[[HttpRequest], HttpReply | None]
"""None if the body may be read, else the refusal."""
Refused = Callable[[HttpRequest, int, str], None]
"""Receiver of refused requests: the status, and the reason."""
ReadyCheck = Callable[[], str | None]
"""None if ready, else the reason why not."""
