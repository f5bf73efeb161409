"""The door of HTTP: each operation is a call, in the frame of all calls."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from types import MappingProxyType
from typing import Any, TypeVar, get_type_hints

import msgspec

from tidemill.errors import DeadlinePassed, Denied, Indeterminate, TidemillError, UsageError
from tidemill.rpc.audited import begin, touch
from tidemill.rpc.calls import Answering, Calls, Origin
from tidemill.rpc.handlers import CatalogHandlers, QueryHandlers
from tidemill.rpc.identity import NEEDS, Principal, Role, caller
from tidemill.rpc.messages import Applied, ResourceDocument
from tidemill.runtime.http_guard import UNSAID
from tidemill.runtime.http_messages import HttpReply, HttpRequest
from tidemill.runtime.http_problems import form_problem
from tidemill.runtime.http_server import HttpServer
from tidemill.time import Frontier, read_at
from tidemill_query.web.forms import accepted

T = TypeVar("T")

_LAST = re.compile(r"\{(\w+)\}$")

WAIT_S_BESIDE = 30.0
"""Seconds that a call has beside those that its caller gave it to wait."""


Check = Callable[[Sequence[ResourceDocument], Principal], Awaitable[Sequence[Applied]]]
"""The outcome that applying documents in the name of somebody would have."""


Identify = Callable[[str], Awaitable[str]]
"""The id of the collection that a goal of the caller is about."""


BirthOf = Callable[[str], str]
"""A collection by its id, in which system it was made: ids come again in one set up anew."""


IdentityOf = Callable[[str], Awaitable[str]]
"""The identity of a collection by its id: another one for each birth, and for other columns."""


UpperOf = Callable[[str], Awaitable[Frontier]]
"""The upper of a collection by its id."""


History = Callable[[str], Awaitable[Sequence[tuple[int, int | None, int | None]]]]
"""Looks at the frontiers of a collection by its name: wall clock, since, upper."""


@dataclass(frozen=True, slots=True)
class Handlers:
    """The handlers of gRPC, and the limit on the rows of one push.

    `public` says that no caller is asked for a token: a shared cache may keep answers.
    """

    query: QueryHandlers
    catalog: CatalogHandlers
    feeds: Any  # of `following`, which is made of operations
    webhooks: Any  # of `webhooks`, likewise
    check: Check
    push_rows: int
    public: bool
    now_ms: Callable[[], int]
    history: History
    identify: Identify
    birth: BirthOf
    identity: IdentityOf
    upper_of: UpperOf

    def at(self, written: str | int | None) -> int | None:
        """The instant that a caller means, by the clock of this server; None for the latest.

        Raises: UsageError.
        """
        return read_at(written, self.now_ms)


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as its operation sees it: arguments, and the form that the answer is to have."""

    of: Any
    form: str
    request: HttpRequest


Answer = Callable[[Handlers, Asked], Awaitable[HttpReply]]


@dataclass(frozen=True, slots=True)
class Proof:
    """The way in which a request proves its caller without a token.

    `expected` raises for a request whose body need not be read. `caller` gives the principal.
    Raises: Unauthenticated.
    """

    expected: Callable[[Handlers, HttpRequest], None]
    caller: Callable[[Handlers, HttpRequest], Awaitable[Principal]]


@dataclass(frozen=True, slots=True)
class Operation:
    """A route that is a call: `call` names it as gRPC does.

    The fields of `arguments` are parts of the path, or parameters. `gives` has the content types of
    the answer, `takes` those of the body, each with the type of its JSON or None. With `proof` no
    token is asked for. `writes` says that a call whose answer is lost may have changed something.
    """

    method: str
    path: str
    call: str
    arguments: type[msgspec.Struct]
    answer: Answer
    gives: Mapping[str, object]
    takes: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))
    proof: Proof | None = None
    writes: bool = False

    @property
    def role(self) -> Role:
        """The role that the call needs."""
        return NEEDS[self.call]


class Door:
    """Adds operations to a server; bodies are read in turns with the work of other users."""

    def __init__(self, calls: Calls, handlers: Handlers, closed: bool) -> None:
        """`closed` refuses everybody: callers have tokens, and would send them in the clear."""
        self._calls = calls
        self._handlers = handlers
        self._closed = closed

    def add(self, http: HttpServer, operation: Operation) -> None:
        """Answer the operation from now on."""

        def admits(request: HttpRequest) -> HttpReply | None:
            return self._admits(operation, request)

        def exchange(request: HttpRequest) -> AbstractAsyncContextManager[HttpReply]:
            return self._exchange(operation, request)

        # The last part may have slashes: `delays/late` is the name of a collection.
        path = _LAST.sub(r"{\1:.+}", operation.path)
        http.add_exchange(operation.method, path, exchange, admits, self)

    def turns(self, reading: Awaitable[T]) -> Awaitable[T]:
        """The body is read in turns with the calls of other users."""
        return self._calls.in_steps(reading)

    async def throttle(self, count: int) -> None:
        """The bytes of the body count as those of calls do."""
        if self._calls.admissions is not None:
            await self._calls.admissions.throttle_bytes(caller.get().name, count)

    def _admits(self, operation: Operation, request: HttpRequest) -> HttpReply | None:
        """None once the caller may send a body. Raises: UsageError without TLS; Unauthenticated,
        Denied.
        """
        if operation.proof is not None:
            operation.proof.expected(self._handlers, request)
            caller.set(Principal(f"stranger {request.remote}", ()))  # until its body is there
            return _typed(operation, request)
        if self._closed:
            raise UsageError(
                "this server asks for tokens, and HTTP is in the clear: set http_tls, or call over "
                "gRPC",
                reason="tls",
            )
        if not operation.takes:
            return None
        origin = _origin(operation, request, None)
        begin()
        try:
            principal = self._calls.admit(origin)
            if operation.role is Role.writer:
                principal.demand(Role.writer, request.parts["name"])
        except TidemillError as error:
            if isinstance(error, Denied):
                touch(*filter(None, [request.parts.get("name")]))
            self._calls.tell_refusal(origin, error)
            raise
        return _typed(operation, request)

    async def _origin_of(
        self, operation: Operation, request: HttpRequest, wait_s: float | None
    ) -> Origin:
        """The origin of a call, proved if the operation asks for a proof. Raises: its refusal."""
        origin = _origin(operation, request, wait_s)
        if operation.proof is None:
            return origin
        begin()
        try:
            return replace(origin, principal=await operation.proof.caller(self._handlers, request))
        except TidemillError as error:
            touch(*filter(None, [request.parts.get("name")]))
            self._calls.tell_refusal(origin, error)
            raise

    @asynccontextmanager
    async def _exchange(
        self, operation: Operation, request: HttpRequest
    ) -> AsyncIterator[HttpReply]:
        form = accepted(request.sent.get("accept", ""), tuple(operation.gives))
        if form is None:
            yield form_problem(406, f"this answer is one of {', '.join(operation.gives)}")
            return
        if operation.takes and not request.body:
            yield form_problem(400, "this call needs a body, and has none")
            return
        try:
            arguments = arguments_of(operation, request)
            wait_s = getattr(arguments, "wait_s", None)
            origin = await self._origin_of(operation, request, wait_s)
            async with self._calls.around(origin) as answering:
                answering.waited = bool(wait_s)
                asked = Asked(arguments, form, request)
                reply = await self._calls.in_steps(operation.answer(self._handlers, asked))
                if isinstance(reply.body, bytes):
                    answering.sent(len(reply.body))
                    yield reply
                else:
                    async with aclosing(reply.body) as pieces:  # type: ignore[type-var]
                        yield replace(reply, body=self._pace(operation, answering, pieces))
        except TimeoutError:
            late = "the deadline passed before the answer came"
            raise (Indeterminate if operation.writes else DeadlinePassed)(late) from None

    async def _pace(
        self, operation: Operation, answering: Answering, pieces: AsyncIterator[bytes]
    ) -> AsyncIterator[bytes]:
        """The pieces, each made in the turn of the caller, as fast as the caller may be sent."""
        while True:
            try:
                piece = await self._calls.in_steps(anext(pieces))
            except StopAsyncIteration:
                return
            yield piece
            answering.sent(len(piece))
            await self._calls.count_sent(operation.call)


def arguments_of(operation: Operation, request: HttpRequest) -> msgspec.Struct:
    """The arguments of a request, as its operation takes them.

    Raises: UsageError that names one.
    """
    listed = _listed(operation.arguments)
    given: dict[str, object] = dict(request.parts)
    for name, values in request.query.items():
        if name in given or (len(values) > 1 and name not in listed):
            raise UsageError(f"request refused: {name!r} is given twice", reason="request")
        given[name] = list(values) if name in listed else values[0]
    try:
        return msgspec.convert(given, operation.arguments, strict=False)
    except msgspec.ValidationError as error:
        raise UsageError(f"request refused: {error}", reason="request") from None


def _typed(operation: Operation, request: HttpRequest) -> HttpReply | None:
    """The refusal of a body of another type than the operation takes."""
    kind = request.sent.get("content-type", "").partition(";")[0].strip().lower()
    if kind in operation.takes or kind in UNSAID:
        return None
    return form_problem(415, f"this body is one of {', '.join(operation.takes)}")


@cache
def _listed(arguments: type[msgspec.Struct]) -> frozenset[str]:
    """The names of arguments that may be given several times."""
    return frozenset(name for name, kind in get_type_hints(arguments).items() if _lists(kind))


def _lists(kind: object) -> bool:
    return getattr(kind, "__origin__", None) is list


def _origin(operation: Operation, request: HttpRequest, wait_s: float | None) -> Origin:
    return Origin(
        operation.call,
        request.remote,
        request.sent,
        request_bytes=None if operation.takes else 0,
        remaining_s=None if wait_s is None else wait_s + WAIT_S_BESIDE,
    )
