"""Connections of the HTTP server: read in slices, and answered by problems alone."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web

from tidemill.runtime.http_messages import HttpReply
from tidemill.runtime.http_problems import fault, form_problem

SLICE_BYTES = 16 << 10
"""Bytes that are read of one connection before others have their turn.

A chunk of one byte costs as much as a large one, so that many bytes at once would hold the loop.
"""

UNTAKEN_LOOK_S = 0.05
"""Pause before the next look at bytes of an answer that no socket has taken yet."""

_slice = memoryview(bytearray(SLICE_BYTES))


def headers_of(reply: HttpReply) -> dict[str, str]:
    """Headers of a reply; a browser takes its type as it is said."""
    return {
        "Content-Type": reply.content_type,
        "X-Content-Type-Options": "nosniff",
        **reply.headers,
    }


def whole(reply: HttpReply, *, last: bool = False) -> web.Response:
    """The response of a reply whose body is there; with `last` the connection ends with it."""
    assert isinstance(reply.body, bytes)
    found = web.Response(status=reply.status, body=reply.body, headers=headers_of(reply))
    if last:
        found.force_close()
    return found


FULL = form_problem(503, "connection refused: limits.http_connections are open")


class Full(asyncio.Protocol):
    """Says that there are too many connections, and ends."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Answer what was not asked yet."""
        assert isinstance(transport, asyncio.WriteTransport)
        assert isinstance(FULL.body, bytes)
        told = {**headers_of(FULL), "Retry-After": "1", "Connection": "close"}
        told["Content-Length"] = str(len(FULL.body))
        head = "".join(f"{name}: {value}\r\n" for name, value in told.items())
        transport.write(f"HTTP/1.1 503 Service Unavailable\r\n{head}\r\n".encode() + FULL.body)
        transport.close()


class Connection(web.RequestHandler, asyncio.BufferedProtocol):
    """A connection that is read a slice at a time, and answers whatever fails by a problem.

    It ends when its first request, or one of which bytes have come, takes longer than `ask_s`. So
    it does when a whole answer is not taken for `answer_s`.
    """

    __slots__ = ("_answer_s", "_ask_s", "_asks_until")

    def __init__(self, server: web.Server, ask_s: float, answer_s: float, **options: Any) -> None:
        super().__init__(server, loop=asyncio.get_running_loop(), **options)
        self._ask_s = ask_s
        self._answer_s = answer_s
        self._asks_until: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A request is to come in time."""
        assert isinstance(transport, asyncio.WriteTransport)
        # An answer is sent once the client has taken it, and not once it waits in a buffer here. A
        # transport of TLS with the limit 0 would call an empty buffer full.
        transport.set_write_buffer_limits(1, 0)
        below = _below(transport)
        if below is not transport:
            below.set_write_buffer_limits(0)
        super().connection_made(transport)
        self._wait_for_request()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Nothing is to come any more."""
        self._end_waiting()
        super().connection_lost(exc)

    def _wait_for_request(self) -> None:
        if self._asks_until is None:
            self._asks_until = self._loop.call_later(self._ask_s, self._abort)

    def _end_waiting(self) -> None:
        if self._asks_until is not None:
            self._asks_until.cancel()
            self._asks_until = None

    def _abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Room for one slice; all connections share it, since each takes out its bytes at once."""
        return _slice

    def buffer_updated(self, nbytes: int) -> None:
        """Parse the bytes that have come."""
        before = self._request_count
        self.data_received(bytes(_slice[:nbytes]))
        if self._request_count > before:
            self._end_waiting()
        elif self._waiter is not None and not self._waiter.done():
            # No request is under way: they begin the next one.
            self._wait_for_request()

    def answer_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The problem of what is no request, or of a failure that nobody foresaw."""
        super().handle_error(request, status, exc, message)
        if status == 400:
            says = (message or "").strip().partition("\n")[0]
            return whole(form_problem(status, f"this is no request of HTTP: {says}"), last=True)
        return whole(fault(exc or RuntimeError(message)), last=True)

    handle_error = answer_error  # by the name under which aiohttp calls it

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send a response; what aiohttp refuses by itself becomes a problem."""
        if isinstance(resp, web.HTTPException):
            resp = whole(form_problem(resp.status, resp.text or resp.reason), last=True)
        try:
            async with asyncio.timeout(self._answer_s):
                sent = await super().finish_response(request, resp, start_time)
                while self._holds_bytes():
                    await asyncio.sleep(UNTAKEN_LOOK_S)
                return sent
        except TimeoutError:
            self._abort()  # nobody else's business
            return resp, True

    def _holds_bytes(self) -> bool:
        """Whether bytes of an answer wait for the socket."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return False
        return _below(transport).get_write_buffer_size() > 0


def _below(transport: asyncio.WriteTransport) -> asyncio.WriteTransport:
    """The transport of the socket, below that of TLS.

    NB: a transport of TLS does not count the bytes that it has handed on. So 64 KiB, and the last
    piece, waited outside of all limits. The library has no other way to them than its own fields.
    """
    encrypting = getattr(transport, "_ssl_protocol", None)
    below: asyncio.WriteTransport | None = getattr(encrypting, "_transport", None)
    return transport if below is None else below
