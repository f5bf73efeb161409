"""A small HTTP server: /metrics, /healthz, /readyz, and routes that services add.

Services see requests and replies of ours; aiohttp stays in here. An error of ours that a route
raises becomes a problem that tells the client what to do next.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any
from weakref import WeakSet

from aiohttp import ClientError, web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler, Middleware

from tidemill.errors import Exhausted, TidemillError, UsageError
from tidemill.runtime.http_connections import Connection, Full, headers_of, whole
from tidemill.runtime.http_guard import HttpGuard
from tidemill.runtime.http_messages import (
    Admission,
    BodyThrottle,
    Exchange,
    HttpReply,
    HttpRequest,
    ReadyCheck,
    Refused,
    Route,
)
from tidemill.runtime.http_problems import form_problem, refusal
from tidemill.runtime.metrics import REFUSALS, Metrics

CLOSE_S_MAX = 5.0
LINGER_S = 1.0
"""So long what still comes of a refused body is thrown away, that the client may read why."""
EVENTS = "text/event-stream"
"""Content type of streams that do not end by themselves; a server that closes ends them."""
LINE_BYTES_MAX = 64 << 10
"""Bytes of a request line; a longer one is refused before any route is known."""
OPENAPI = "/v1/openapi.json"
"""The list of routes of a server that answers calls."""
PATH_CHARS_MAX = 200
"""Characters of a path that a refusal repeats, and compares with the routes."""
JOIN_INLINE_MAX = 1 << 20
"""Bytes of a body that are put together on the event loop; more take milliseconds."""
PIECE_BYTES = 64 << 10
"""Bytes of an answer that a client has to take in time; a shorter one is taken whole."""
SCRAPES_SHARE = 0.2
"""Of the event loop scrapes take no more: whoever scrapes sooner is given the last one again."""


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Limits on the clients of a server; a request beyond one is refused, the others go on."""

    body_bytes: int = 16 << 20
    """The largest body."""

    bodies_bytes: int = 256 << 20
    """Bytes of all bodies that have come and are not answered yet."""

    body_s: float = 30.0
    """Seconds for a body to arrive, for a connection to ask for anything, and for a request to come
    whole."""

    answer_s: float = 60.0
    """Seconds for a client to take the next piece of an answer, or a short one whole."""

    connections: int = 1_000
    """Connections that are open at once.

    One too many takes the place of one that asks for nothing.
    """


class HttpServer:
    """Serves one address from `start` to `close`; routes are added before `start`."""

    def __init__(
        self,
        host: str,
        port: int,
        metrics: Metrics,
        tls: ssl.SSLContext | None = None,
        guard: HttpGuard | None = None,
        limits: HttpLimits | None = None,
        refused: Refused | None = None,
    ) -> None:
        """Listen on a port; port 0 takes a free one, which `start` returns. Without `tls` nothing
        is encrypted.

        A request that `guard` refuses is not read any further. `refused` is called for each of
        these. It is also called for a body that is too large, or packed in a way that is not taken.
        """
        self._tls = tls
        self._limits = limits or HttpLimits()
        self._held_bytes = 0
        self._endless: WeakSet[asyncio.Task[object]] = WeakSet()
        self._asking: WeakSet[asyncio.BaseTransport] = WeakSet()
        self._scraped = b"", ""
        self._scraped_until_s = -1.0
        self._listening: asyncio.Server | None = None
        self._host = host
        self._port = port
        self._metrics = metrics
        self._checks: dict[str, ReadyCheck] = {}
        self._warnings: list[str] = []
        self._hears = refused
        self._application = web.Application(middlewares=[self._guarded(guard or HttpGuard())])
        self._of_connections: dict[str, Any] = {
            "access_log": None,
            "logger": _log,
            "lingering_time": LINGER_S,
            # Refused bodies are read to their end and never unpacked: none that is packed is taken.
            "auto_decompress": False,
            "max_line_size": LINE_BYTES_MAX,
        }
        self._runner = web.AppRunner(self._application, shutdown_timeout=CLOSE_S_MAX)
        self.add_route("GET", "/metrics", self._show_metrics)
        self.add_route("GET", "/healthz", self._show_health)
        self.add_route("GET", "/readyz", self._show_readiness)

    def add_route(
        self,
        method: str,
        path: str,
        route: Route,
        admits: Admission | None = None,
        throttle: BodyThrottle | None = None,
    ) -> None:
        """Answer `method` on `path` with `route`; `{name}` in the path becomes a part.

        A refusal of `admits` is answered before the body is read, as fast as `throttle` lets it.
        """

        @asynccontextmanager
        async def once(request: HttpRequest) -> AsyncIterator[HttpReply]:
            yield await route(request)

        self.add_exchange(method, path, once, admits, throttle)

    def add_exchange(
        self,
        method: str,
        path: str,
        exchange: Exchange,
        admits: Admission | None = None,
        throttle: BodyThrottle | None = None,
    ) -> None:
        """Answer as `add_route` does; `exchange` is left once its reply is sent, or is lost.

        A route of GET answers HEAD with the same status and headers, and no body.
        """

        async def answer(request: web.Request) -> web.StreamResponse:
            reply: HttpReply
            response: web.StreamResponse | None = None
            try:
                async with self._reply(request, exchange, admits, throttle) as reply:
                    if not isinstance(reply.body, bytes):
                        response = web.StreamResponse(
                            status=reply.status, headers=headers_of(reply)
                        )
                        await self._send(request, response, reply.body)
                        return response
            except TidemillError as error:
                if isinstance(error, Exhausted):
                    self._metrics.increment(REFUSALS, limit=str(error.details.get("setting", "")))
                reply = refusal(error)
            if response is not None:
                _cut(request)  # it had begun: the client sees that it breaks off
                return response
            return await self._deliver(request, reply)

        for each in ("HEAD", "GET") if method == "GET" else (method,):
            self._application.router.add_route(each, path, answer)

    async def _deliver(self, request: web.Request, reply: HttpReply) -> web.StreamResponse:
        """Answer with a body that is there; a long one is sent piece by piece, as `_send` does."""
        assert isinstance(reply.body, bytes)
        last = not request.content.is_eof()  # the rest of the body is nobody's to read
        if len(reply.body) <= PIECE_BYTES:
            return whole(reply, last=last)
        response = web.StreamResponse(status=reply.status, headers=headers_of(reply))
        response.content_length = len(reply.body)
        if last:
            response.force_close()
        await self._send(request, response, _pieces(reply.body))
        return response

    async def _send(
        self, request: web.Request, response: web.StreamResponse, pieces: AsyncIterator[bytes]
    ) -> None:
        """Send a body piece by piece; a client that does not take one in time is cut off."""
        await response.prepare(request)
        if request.method == "HEAD":
            await _close(pieces)
            return
        task = asyncio.current_task()
        if task is not None and response.content_type == EVENTS:
            self._endless.add(task)
        try:
            async for piece in pieces:
                async with asyncio.timeout(self._limits.answer_s):
                    await response.write(piece)
            await response.write_eof()
        except (TimeoutError, ConnectionError):
            _cut(request)  # it is too slow, or has gone away: nobody else's business
        finally:
            await _close(pieces)

    @asynccontextmanager
    async def _reply(
        self,
        request: web.Request,
        exchange: Exchange,
        admits: Admission | None,
        throttle: BodyThrottle | None,
    ) -> AsyncIterator[HttpReply]:
        """The answer of the route, or the refusal of the call."""
        asked = _request_of(request)
        refused = None if admits is None else admits(asked)
        if refused is not None:
            yield refused
            return
        if _is_packed(request):
            says = "send the body as it is, without an encoding"
            self._tell(asked, 415, says)
            yield form_problem(415, says)
            return
        if not request.can_read_body:
            async with exchange(asked) as reply:
                yield reply
            return
        pieces: list[bytes] = []
        try:
            reading = self._read(request, asked, pieces, throttle)
            broken = await (reading if throttle is None else throttle.turns(reading))
            if broken is not None:
                yield broken
                return
            long = sum(map(len, pieces)) > JOIN_INLINE_MAX
            body = await asyncio.to_thread(b"".join, pieces) if long else b"".join(pieces)
            async with exchange(replace(asked, body=body)) as reply:
                yield reply
        finally:
            self._held_bytes -= sum(map(len, pieces))

    def _tell(self, request: HttpRequest, status: int, says: str) -> None:
        if self._hears is not None:
            self._hears(request, status, says)

    async def _read(
        self,
        request: web.Request,
        asked: HttpRequest,
        pieces: list[bytes],
        throttle: BodyThrottle | None,
    ) -> HttpReply | None:
        """Read the whole body, or refuse one that is too large, too slow, or does not come
        whole.
        """
        limits, size = self._limits, 0
        try:
            async with asyncio.timeout(limits.body_s):
                async for piece in request.content.iter_any():
                    pieces.append(piece)
                    size += len(piece)
                    self._held_bytes += len(piece)
                    if size > limits.body_bytes:
                        says = f"the body has more than {limits.body_bytes:,} bytes (limits.http_body_bytes)"
                        self._tell(asked, 413, says)
                        return form_problem(413, says)
                    if self._held_bytes > limits.bodies_bytes:
                        raise Exhausted(
                            f"body refused: all bodies together have {limits.bodies_bytes:,} bytes"
                            " already; try again later (limits.http_bodies_bytes)",
                            setting="limits.http_bodies_bytes",
                        )
                    if throttle is not None:
                        await throttle.throttle(len(piece))
            return None
        except TimeoutError:
            says = f"the body took longer than {self._limits.body_s:g} s (limits.http_body_s)"
            return form_problem(408, says)
        except (ClientError, web.RequestPayloadError, OSError, ValueError):
            # The client went away, or sent something that is no body: nobody else's business.
            return form_problem(400, "the body broke off, or is none")

    def _guarded(self, guard: HttpGuard) -> Middleware:
        @web.middleware
        async def admit(request: web.Request, handler: Handler) -> web.StreamResponse:
            transport = request.transport
            if transport is None:
                return await examine(request, handler)
            self._asking.add(transport)
            try:
                return await examine(request, handler)
            finally:
                self._asking.discard(transport)

        async def examine(request: web.Request, handler: Handler) -> web.StreamResponse:
            headers = {name.lower(): value for name, value in request.headers.items()}
            refused = guard.refusal(request.method, headers)
            if refused is None:
                try:
                    return await handler(request)
                except web.HTTPException as found:  # no such route, or not by this method
                    unrouted = whole(
                        form_problem(found.status, self._unrouted(request, found.status))
                    )
                    unrouted.headers.update(
                        {n: v for n, v in found.headers.items() if n == "Allow"}
                    )
                    return unrouted
            status, says = refused
            self._tell(_request_of(request), status, says)
            # The rest of the body, which is under way, is not read.
            return whole(form_problem(status, says), last=True)

        return admit

    def _unrouted(self, request: web.Request, status: int) -> str:
        """The request, and for a path that is none the nearest one, or where all of them stand."""
        asked = f"{request.method} {request.path[:PATH_CHARS_MAX]}"
        if status != 404:
            return asked
        paths = dict.fromkeys(each.canonical for each in self._application.router.resources())
        near = get_close_matches(request.path[:PATH_CHARS_MAX], paths, n=1, cutoff=0.75)
        if near:
            return f"{asked}; did you mean {near[0]}?"
        return f"{asked}; " + (
            f"GET {OPENAPI} lists every route" if OPENAPI in paths else f"it has {', '.join(paths)}"
        )

    def add_ready_check(self, name: str, check: ReadyCheck) -> None:
        """Add `check` to /readyz, which is ready when every check is."""
        self._checks[name] = check

    def add_warning(self, says: str) -> None:
        """Add a line below the `ok` of /healthz."""
        self._warnings.append(says)

    async def start(self) -> int:
        """Listen; the port. Raises: UsageError if the address is taken."""
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        try:
            self._listening = await loop.create_server(
                self._accepted, self._host, self._port, ssl=self._tls
            )
        except OSError as error:
            await self._runner.cleanup()
            taken = error.errno == errno.EADDRINUSE
            why = (
                "is it in use? End the process that has it, or give another port by --http-port"
                if taken
                else error.strerror or error
            )
            raise UsageError(
                f"cannot listen on {self._host}:{self._port}: {why}", reason="address-in-use"
            ) from error
        port: int = self._listening.sockets[0].getsockname()[1]
        return port

    def _accepted(self) -> asyncio.Protocol:
        """The protocol of a new connection: a server's, or a refusal beyond the limit."""
        server = self._runner.server
        assert server is not None
        if len(server.connections) >= self._limits.connections and not self._idle_ended():
            self._metrics.increment(REFUSALS, limit="limits.http_connections")
            return Full()
        limits = self._limits
        return Connection(server, limits.body_s, limits.answer_s, **self._of_connections)

    def _idle_ended(self) -> bool:
        """End the connection that has waited longest of those that ask for nothing; whether there
        is one.

        Nobody is asked who they are before they ask for something: else whoever opens many shuts
        out probes.
        """
        assert self._runner.server is not None
        for connection in self._runner.server.connections:
            transport = connection.transport
            if transport is None or transport.is_closing() or transport in self._asking:
                continue
            transport.abort()
            return True
        return False

    async def close(self) -> None:
        """Stop listening, end streams of events, let running requests finish for a few seconds.

        Twice is once.
        """
        if self._listening is not None:
            self._listening.close()
        for task in self._endless:
            task.cancel()
        await self._runner.cleanup()

    async def _show_metrics(self, request: HttpRequest) -> HttpReply:
        """Metrics of the process in the text form of Prometheus.

        A scrape takes at most `SCRAPES_SHARE` of the event loop: a sooner one gets the last text
        again.
        """
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        if begun_s >= self._scraped_until_s:
            self._scraped = self._metrics.expose()
            took_s = loop.time() - begun_s
            self._scraped_until_s = begun_s + took_s / SCRAPES_SHARE
        return HttpReply(200, *self._scraped)

    async def _show_health(self, request: HttpRequest) -> HttpReply:
        """`ok`, and one line for each warning, as text: the process lives."""
        lines = ["ok", *(f"warning: {says}" for says in self._warnings)]
        return HttpReply(200, "".join(f"{line}\n" for line in lines).encode(), "text/plain")

    async def _show_readiness(self, request: HttpRequest) -> HttpReply:
        """JSON with `ready`, and with `waiting`: each check that fails, with its reason.

        The status is 200 if every check holds, else 503.
        """
        answers = {name: check() for name, check in self._checks.items()}
        waiting = {name: reason for name, reason in answers.items() if reason is not None}
        return HttpReply.json({"ready": not waiting, "waiting": waiting}, 503 if waiting else 200)


def _is_ours(event: logging.LogRecord) -> bool:
    """Whether an event is no client's doing: what is no HTTP is answered 400, and no news."""
    return not (event.exc_info and isinstance(event.exc_info[1], HttpProcessingError))


_log = logging.getLogger("tidemill.http")
_log.addFilter(_is_ours)


async def _pieces(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), PIECE_BYTES):
        yield body[start : start + PIECE_BYTES]


async def _close(pieces: AsyncIterator[bytes]) -> None:
    """End what makes the pieces of a body."""
    if isinstance(pieces, AsyncGenerator):
        await pieces.aclose()


def _is_packed(request: web.Request) -> bool:
    """Whether the body is encoded by anything beside its chunks."""
    said = [
        each.strip().lower()
        for name in ("Content-Encoding", "Transfer-Encoding")
        for value in request.headers.getall(name, [])
        for each in value.split(",")
    ]
    return not {"", "identity", "chunked"}.issuperset(said)


def _cut(request: web.Request) -> None:
    """End a connection in the middle of an answer."""
    if request.transport is not None:
        request.transport.abort()


def _request_of(request: web.Request) -> HttpRequest:
    return HttpRequest(
        method=request.method,
        path=request.path,
        parts=dict(request.match_info),
        query={name: tuple(request.query.getall(name)) for name in request.query},
        headers=dict(request.headers),
        remote=request.remote or "",
    )
