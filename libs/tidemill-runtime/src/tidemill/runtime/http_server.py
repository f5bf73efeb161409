"""A small HTTP server: /metrics, /healthz, /readyz, and routes that services add.

Services see requests and replies of ours; aiohttp stays in here. An error of ours that a route raises
becomes the status that tells the client what to do next, with the message as JSON.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from tidemill.runtime.http_guard import HttpGuard
from tidemill.runtime.metrics import Metrics
from tidemill.time.errors import (
    AlreadyUsed,
    Fenced,
    Indeterminate,
    NotYet,
    TidemillError,
    Unavailable,
    UnknownCapability,
    UnknownCollection,
    UsageError,
)

BODY_BYTES_MAX = 16 << 20
CLOSE_S_MAX = 5.0
RETRY_AFTER_S = 1

_STATUSES: tuple[tuple[type[TidemillError], int], ...] = (
    (UnknownCollection, 404),
    (UnknownCapability, 404),
    (AlreadyUsed, 409),
    (UsageError, 400),
    (Fenced, 409),
    (NotYet, 425),
    (Unavailable, 503),
    (Indeterminate, 500),
)
"""The first line whose class fits; everything else is 500."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """What a route is given: the parts of its path, the query, and the whole body."""

    method: str
    path: str
    parts: Mapping[str, str]
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class HttpReply:
    """What a route answers."""

    status: int = 200
    body: bytes = b""
    content_type: str = "application/octet-stream"
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def json(cls, value: object, status: int = 200) -> HttpReply:
        """A reply with `value` as JSON."""
        return cls(status, json.dumps(value).encode() + b"\n", "application/json")


Route = Callable[[HttpRequest], Awaitable[HttpReply]]
ReadyCheck = Callable[[], str | None]
"""None if ready, else the reason why not."""


class HttpServer:
    """Serves one address from `start` to `close`; routes are added before `start`."""

    def __init__(
        self,
        host: str,
        port: int,
        metrics: Metrics,
        tls: ssl.SSLContext | None = None,
        guard: HttpGuard | None = None,
    ) -> None:
        """Port 0 takes a free one; `start` tells which. Without `tls` it listens in the clear.

        Requests that `guard` refuses are not read any further.
        """
        self._tls = tls
        self._host = host
        self._port = port
        self._metrics = metrics
        self._checks: dict[str, ReadyCheck] = {}
        self._warnings: list[str] = []
        self._application = web.Application(
            client_max_size=BODY_BYTES_MAX, middlewares=[_guarded(guard or HttpGuard())]
        )
        self._runner = web.AppRunner(
            self._application, access_log=None, shutdown_timeout=CLOSE_S_MAX
        )
        self.add_route("GET", "/metrics", self._show_metrics)
        self.add_route("GET", "/healthz", self._show_health)
        self.add_route("GET", "/readyz", self._show_readiness)

    def add_route(self, method: str, path: str, route: Route) -> None:
        """Answer `method` on `path` with `route`; `{name}` in the path becomes a part."""

        async def answer(request: web.Request) -> web.Response:
            try:
                reply = await route(await _request_of(request))
            except TidemillError as error:
                reply = _refusal(error)
            return web.Response(
                status=reply.status,
                body=reply.body,
                headers={"Content-Type": reply.content_type, **reply.headers},
            )

        self._application.router.add_route(method, path, answer)

    def add_ready_check(self, name: str, check: ReadyCheck) -> None:
        """Let /readyz ask `check`; it is ready when every check is."""
        self._checks[name] = check

    def add_warning(self, says: str) -> None:
        """Let /healthz say so below its `ok`."""
        self._warnings.append(says)

    async def start(self) -> int:
        """Listen; the port. Raises: UsageError if the address is taken."""
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, self._port, ssl_context=self._tls)
        try:
            await site.start()
        except OSError as error:
            await self._runner.cleanup()
            raise UsageError(
                f"cannot listen on {self._host}:{self._port}: {error.strerror or error}",
                reason="address-in-use",
            ) from error
        port: int = self._runner.addresses[0][1]
        return port

    async def close(self) -> None:
        """Stop listening, let running requests finish for a few seconds; twice is once."""
        await self._runner.cleanup()

    async def _show_metrics(self, request: HttpRequest) -> HttpReply:
        body, content_type = self._metrics.expose()
        return HttpReply(200, body, content_type)

    async def _show_health(self, request: HttpRequest) -> HttpReply:
        lines = ["ok", *(f"warning: {says}" for says in self._warnings)]
        return HttpReply(200, "".join(f"{line}\n" for line in lines).encode(), "text/plain")

    async def _show_readiness(self, request: HttpRequest) -> HttpReply:
        answers = {name: check() for name, check in self._checks.items()}
        waiting = {name: reason for name, reason in answers.items() if reason is not None}
        return HttpReply.json({"ready": not waiting, "waiting": waiting}, 503 if waiting else 200)


def _guarded(guard: HttpGuard) -> Middleware:
    @web.middleware
    async def admit(request: web.Request, handler: Handler) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in request.headers.items()}
        refused = guard.refusal(request.method, headers)
        if refused is None:
            return await handler(request)
        status, says = refused
        answer = web.json_response({"error": "Denied", "message": says}, status=status)
        answer.force_close()  # what of the body is under way is not read
        return answer

    return admit


async def _request_of(request: web.Request) -> HttpRequest:
    return HttpRequest(
        method=request.method,
        path=request.path,
        parts=dict(request.match_info),
        query=dict(request.query),
        headers=dict(request.headers),
        body=await request.read(),
    )


def _refusal(error: TidemillError) -> HttpReply:
    status = next((code for kind, code in _STATUSES if isinstance(error, kind)), 500)
    words = {"error": type(error).__name__, "message": str(error)}
    reply = HttpReply.json(words, status)
    if status == 503:
        return HttpReply(
            status, reply.body, reply.content_type, {"Retry-After": str(RETRY_AFTER_S)}
        )
    return reply
