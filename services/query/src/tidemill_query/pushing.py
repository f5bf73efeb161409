"""Rows over HTTP, for whoever may write to the source."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

import numpy as np

from tidemill.errors import Denied, Unauthenticated, UsageError
from tidemill.rpc.admission import Admissions
from tidemill.rpc.audited import Auditor, begin, tell, touch
from tidemill.rpc.handlers import CatalogHandlers
from tidemill.rpc.identity import EVERYBODY, Authenticator, Principal, Role, caller
from tidemill.rpc.turns import beside
from tidemill.runtime.http_server import HttpReply, HttpRequest
from tidemill_query.push_tokens import refuse_many_rows

T = TypeVar("T")

PIECE_BYTES = 1 << 18
"""Bytes that are looked through in a tenth of a millisecond."""

LINE_FEED, CARRIAGE_RETURN = b"\n"[0], b"\r"[0]

PUSH = "/tidemill.catalog.v1.CatalogService/Push"
"""The call that a push over HTTP is."""

TOKEN_HEADER = "idempotency-key"
"""The header with the token of a push that may be repeated."""


class HttpPushing:
    """The route that takes rows, one to a line: they are in the log before the answer.

    The caller is identified before the body is read. In the clear nobody is let in if there are
    tokens.
    """

    def __init__(
        self,
        catalog: CatalogHandlers,
        users: Authenticator | None,
        admissions: Admissions,
        clear: bool,
        auditor: Auditor,
        rows_max: int,
    ) -> None:
        self._rows_max = rows_max
        self._auditor = auditor
        self._catalog = catalog
        self._users = users
        self._admissions = admissions
        self._clear = clear

    def admits(self, request: HttpRequest) -> HttpReply | None:
        """The refusal of who may not write to the source. Raises: UsageError without TLS."""
        if self._users is None:
            return None
        if self._clear:
            raise UsageError(
                "this server asks for tokens, and HTTP is in the clear: set http_tls, or push rows "
                "over gRPC",
                reason="tls",
            )
        begin()
        try:
            caller.set(self._principal(request))
            caller.get().demand(Role.writer, request.parts["name"])
        except Unauthenticated as error:
            tell(self._auditor, PUSH, request.remote, error)
            return HttpReply.json({"error": "Unauthenticated", "message": str(error)}, 401)
        except Denied as error:
            tell(self._auditor, PUSH, request.remote, error)
            return HttpReply.json({"error": "Denied", "message": str(error)}, 403)
        return None

    async def push(self, request: HttpRequest) -> HttpReply:
        """Write the rows of the body, one a line, to the log of the source `name`.

        The answer is JSON with `accepted`, the number of rows, once they are in the log. With a
        header `Idempotency-Key` a repeated push writes each row once. The caller's right to write
        is judged before the body is read. Raises: Exhausted if the caller has too much under way.
        """
        begin()
        touch(request.parts["name"])
        failed: BaseException | None = None
        try:
            caller.set(self._principal(request))
            with self._admissions.admitted(caller.get().name, endless=False, request_bytes=None):
                steps = self._admissions.steps
                return await steps.steps_of(caller.get().name, self._write_rows(request))
        except BaseException as error:
            failed = error
            raise
        finally:
            tell(self._auditor, PUSH, request.remote, failed)

    def turns(self, reading: Awaitable[T]) -> Awaitable[T]:
        """The body is read in turns with the calls of other users."""
        return self._admissions.steps.steps_of(caller.get().name, reading, endless=True)

    async def throttle(self, count: int) -> None:
        """The bytes of the body count as those of calls do."""
        await self._admissions.throttle_bytes(caller.get().name, count)

    async def _write_rows(self, request: HttpRequest) -> HttpReply:
        rows = await _rows_of(request.body, self._rows_max)
        await self._admissions.throttle_rows(caller.get().name, len(rows))
        name, token = request.parts["name"], _header(request, TOKEN_HEADER)
        pushed = await self._catalog.push(name, rows, token)
        return HttpReply.json({"accepted": pushed.accepted})

    def _principal(self, request: HttpRequest) -> Principal:
        if self._users is None:
            return EVERYBODY
        sent = {name.lower(): value for name, value in request.headers.items()}
        return self._users.principal(sent, tuple)


def line_ends(body: bytes, piece_bytes: int = PIECE_BYTES) -> int:
    """Line ends of a body, counted in pieces without the interpreter: other threads go on."""
    whole = np.frombuffer(body, np.uint8)
    found = 0
    for start in range(0, len(whole), piece_bytes):
        piece = whole[start : start + piece_bytes + 1]
        feeds, returns = piece == LINE_FEED, piece == CARRIAGE_RETURN
        for ends in (feeds[:piece_bytes], returns[:piece_bytes]):
            found += int(np.count_nonzero(ends))
        found -= int(np.count_nonzero(returns[:-1] & feeds[1:]))
    return found


async def _rows_of(body: bytes, rows_max: int) -> list[bytes]:
    """The lines of a body that are not empty; those of a long one are found beside the event loop.

    Raises: Exhausted.
    """

    def rows() -> list[bytes]:
        # NB: counted before they are cut: as texts they take a hundred times the room of the body.
        refuse_many_rows(line_ends(body), rows_max)
        return [line for line in body.splitlines() if line.strip()]

    return await beside(len(body), rows)


def _header(request: HttpRequest, name: str) -> str | None:
    """A header, if it is there. Raises: UsageError for one that is no text of ASCII."""
    found = next((value for key, value in request.headers.items() if key.lower() == name), None)
    if found is not None and not found.isascii():
        raise UsageError(f"push refused: the header {name} is no text of ASCII", reason="Header")
    return found
