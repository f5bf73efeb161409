"""Rows over HTTP, for whoever may write to the source."""

from __future__ import annotations

from tidemill.rpc.admission import Admissions
from tidemill.rpc.handlers import CatalogHandlers
from tidemill.rpc.identity import EVERYBODY, Authenticator, Principal, Role
from tidemill.rpc.status import Denied, Unauthenticated
from tidemill.runtime.http_server import HttpReply, HttpRequest
from tidemill.time import UsageError


class HttpPushing:
    """The route that takes rows, one to a line: they are in the log before the answer.

    Who calls is asked before the body is read. In the clear nobody is let in where there are tokens.
    """

    def __init__(
        self,
        catalog: CatalogHandlers,
        users: Authenticator | None,
        admissions: Admissions,
        clear: bool,
    ) -> None:
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
        try:
            self._principal(request).demand(Role.writer, request.parts["name"])
        except Unauthenticated as error:
            return HttpReply.json({"error": "Unauthenticated", "message": str(error)}, 401)
        except Denied as error:
            return HttpReply.json({"error": "Denied", "message": str(error)}, 403)
        return None

    async def push(self, request: HttpRequest) -> HttpReply:
        """Give the rows to the log. Raises: Exhausted if the caller has too much under way."""
        user = self._principal(request).name
        with self._admissions.admitted(user, endless=False, request_bytes=len(request.body)):
            rows = [line for line in request.body.splitlines() if line.strip()]
            pushed = await self._catalog.push(request.parts["name"], rows)
            return HttpReply.json({"accepted": pushed.accepted})

    def _principal(self, request: HttpRequest) -> Principal:
        if self._users is None:
            return EVERYBODY
        sent = {name.lower(): value for name, value in request.headers.items()}
        return self._users.principal(sent, tuple)
