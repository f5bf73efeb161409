"""Interceptors of our own services: metrics, authentication, deadline, validation, error status.

Health and reflection are left alone; they keep the conventions of their own packages.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    nullcontext,
    suppress,
)
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from tidemill.errors import Denied, Exhausted, TidemillError, UsageError
from tidemill.rpc.admission import Admissions, of_call
from tidemill.rpc.audited import Auditor, begin, tell
from tidemill.rpc.identity import NEEDS, Authenticator, Principal, Role, caller
from tidemill.rpc.status import DETAILS_KEY, sayable, to_status
from tidemill.rpc.turns import beside
from tidemill.rpc.validation import validate

T = TypeVar("T")

WATCHERS = "whoever watches health"
"""For whom calls are counted that say nothing of who makes them."""

Context = Any  # grpc.aio.ServicerContext; its stubs are generic in types that interceptors ignore
"""The context of a call on the server."""


class CallObserver(Protocol):
    """Receiver of counts and log events of calls; `code` is a name of gRPC's, such as `OK`."""

    def started(self, method: str) -> None:
        """A call of `method` arrived."""
        ...

    def sent(self, method: str) -> None:
        """A message of a stream was sent."""
        ...

    def refused(self, limit: str) -> None:
        """A call reached the limit of this setting."""
        ...

    def ended(self, method: str, code: str, seconds: float, error: BaseException | None) -> None:
        """The call ended; `error` is set only if it was none of Tidemill's own: a bug."""
        ...


class SilentObserver:
    """Observes nothing."""

    def started(self, method: str) -> None:
        """No effect."""

    def sent(self, method: str) -> None:
        """No effect."""

    def refused(self, limit: str) -> None:
        """No effect."""

    def ended(self, method: str, code: str, seconds: float, error: BaseException | None) -> None:
        """No effect."""


@dataclass(frozen=True, slots=True)
class DeadlinePolicy:
    """Seconds that a call may take: `default_s` without a deadline, at most `cap_s` with one.

    Subscriptions have no end of their own: `endless` names the methods that need no deadline.
    """

    default_s: float = 30.0
    cap_s: float = 600.0
    endless: frozenset[str] = frozenset(
        {
            "/tidemill.query.v1.QueryService/Subscribe",
            "/tidemill.storage.v1.StorageService/SubscribeAt",
            "/tidemill.ingest.v1.IngestService/Deliver",
        }
    )

    def seconds(self, method: str, remaining: float | None) -> float | None:
        """The time that the call gets; None for an endless one."""
        if method in self.endless:
            return remaining
        return self.default_s if remaining is None else min(remaining, self.cap_s)


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Authenticates, authorizes, validates and observes each call; errors become a status.

    A call ends at its deadline. Handlers find the caller in `identity.caller`.
    """

    def __init__(
        self,
        observer: CallObserver,
        deadlines: DeadlinePolicy,
        authenticator: Authenticator,
        admissions: Admissions | None,
        auditor: Auditor,
    ) -> None:
        """Without `admissions` nothing is counted: a port of services."""
        self._admissions = admissions
        self._observer = observer
        self._auditor = auditor
        self._deadlines = deadlines
        self._authenticator = authenticator

    async def intercept_service(  # type: ignore[override]  # the stubs tie two free variables
        self,
        continuation: Callable[
            [grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any]]
        ],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """The handler of a method inside the interceptor; foreign services are only watched."""
        method = handler_call_details.method
        found: Any = await continuation(handler_call_details)
        if found is None:
            return None  # no such method
        if not method.startswith("/tidemill."):
            return self._watching(found)
        if found.request_streaming:
            return grpc.stream_stream_rpc_method_handler(
                self._around_streams(method, found.stream_stream),
                partial(Sent, deserialize=found.request_deserializer),
                found.response_serializer,
            )
        if found.response_streaming:
            return grpc.unary_stream_rpc_method_handler(
                self._around_stream(method, found.unary_stream),
                partial(Sent, deserialize=found.request_deserializer),
                found.response_serializer,
            )
        return grpc.unary_unary_rpc_method_handler(
            self._around_unary(method, found.unary_unary),
            partial(Sent, deserialize=found.request_deserializer),
            found.response_serializer,
        )

    def _watching(self, found: Any) -> grpc.RpcMethodHandler[Any, Any]:
        """A call of another package: one that does not end by itself is counted, since nobody is
        asked who it is.
        """
        admissions = self._admissions
        if admissions is None or not found.response_streaming or found.request_streaming:
            return found  # type: ignore[no-any-return]  # a handler as it came
        behavior = found.unary_stream

        async def answers(request: Any, context: Context) -> Any:
            try:
                with admissions.admitted(WATCHERS, True, _size(request)):
                    return await behavior(request, context)
            except Exhausted as error:
                self._observer.refused(str(error.details.get("setting", "")))
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, error.message)

        return grpc.unary_stream_rpc_method_handler(
            answers, found.request_deserializer, found.response_serializer
        )

    def _around_unary(
        self, method: str, behavior: Callable[[Any, Context], Awaitable[Any]]
    ) -> Callable[[Any, Context], Awaitable[Any]]:
        async def answer(request: Sent, context: Context) -> Any:
            async with self._surround(method, request, context) as call:
                message = await self._in_steps(behavior(call.request, context))
                call.sent(_size(message))
                return message

        return answer

    def _around_stream(
        self, method: str, behavior: Callable[[Any, Context], AsyncIterator[Any]]
    ) -> Callable[[Any, Context], AsyncIterator[Any]]:
        async def answers(request: Sent, context: Context) -> AsyncIterator[Any]:
            async with self._surround(method, request, context) as call:
                found = aiter(behavior(call.request, context))
                with suppress(StopAsyncIteration):
                    while True:
                        message = await self._in_steps(anext(found), method)
                        yield message
                        call.sent(_size(message))
                        if self._admissions is not None:
                            await self._admissions.throttle_bytes(caller.get().name)
                        self._observer.sent(method)

        return answers

    def _around_streams(
        self, method: str, behavior: Callable[[Any, Context], AsyncIterator[Any]]
    ) -> Callable[[Any, Context], AsyncIterator[Any]]:
        """A call between services, which has no turns: what one sends is read as it comes."""

        async def messages(requests: AsyncIterator[Sent]) -> AsyncIterator[Any]:
            async for request in requests:
                yield await _read(method, request)

        async def answers(requests: AsyncIterator[Sent], context: Context) -> AsyncIterator[Any]:
            async with self._surround(method, None, context) as call:
                async for message in behavior(messages(requests), context):
                    yield message
                    call.sent(_size(message))
                    self._observer.sent(method)

        return answers

    def _in_steps(self, call: Awaitable[T], method: str = "") -> Awaitable[T]:
        """The call of the caller, in turn with those of others; a port of services has no turns."""
        if self._admissions is None:
            return call
        endless = method in self._deadlines.endless
        return self._admissions.steps.steps_of(caller.get().name, call, endless)

    @asynccontextmanager
    async def _surround(
        self, method: str, request: Sent | None, context: Context
    ) -> AsyncIterator[_Call]:
        loop = asyncio.get_running_loop()
        began = loop.time()
        code, fault = "OK", None
        ended: BaseException | None = None
        message: Any = None
        self._observer.started(method)
        # IMPORTANT: asked now. Once the call is over gRPC has freed what knows, and to ask ends the
        # process.
        peer = str(context.peer())
        begin()
        try:
            principal = self._admit(method, context)
            of_call.set(self._admissions)
            if self._admissions is not None:
                self._admissions.strangers.know(peer)
            size = 0 if request is None else len(request.data)
            with self._counted(principal, method, size) as sent:
                async with self._deadline(method, context):
                    if request is not None:
                        message = await self._in_steps(_read(method, request))
                    yield _Call(message, sent)
        except TidemillError as error:
            ended = error
            if isinstance(error, Exhausted):
                self._observer.refused(str(error.details.get("setting", "")))
            status, details = to_status(error, waited=_waits(message))
            code = status.name
            await context.abort(status, sayable(error.message[:1000]), ((DETAILS_KEY, details),))
        except TimeoutError as error:
            ended = error
            code = "DEADLINE_EXCEEDED"
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the deadline passed")
        except (asyncio.CancelledError, GeneratorExit) as error:
            ended = error
            code = "CANCELLED"
            raise
        except Exception as error:
            # The outermost frame of a call: the server goes on, the observer reports the bug.
            code, fault = "INTERNAL", error
            ended = error
            says = sayable(f"{type(error).__name__}: {error}"[:1000])
            # With details of ours: without, it would be a connection that broke, and be tried
            # again.
            status, details = to_status(TidemillError(f"the server failed: {says}"))
            await context.abort(status, says, ((DETAILS_KEY, details),))
        finally:
            self._observer.ended(method, code, loop.time() - began, fault)
            tell(self._auditor, method, peer, ended)

    def _counted(
        self, principal: Principal, method: str, request_bytes: int
    ) -> AbstractContextManager[Callable[[int], None]]:
        """Raises: Exhausted if the caller has too much under way."""
        if self._admissions is None:
            return nullcontext(lambda size: None)
        endless = method in self._deadlines.endless
        return self._admissions.admitted(principal.name, endless, request_bytes)

    def _admit(self, method: str, context: Context) -> Principal:
        """The principal of a call, made known to the code that serves it. Raises: Unauthenticated,
        Denied.
        """

        def identities() -> list[str]:
            return [each.decode(errors="replace") for each in context.peer_identities() or ()]

        sent = {str(key).lower(): str(value) for key, value in context.invocation_metadata() or ()}
        principal = self._authenticator.principal(sent, identities)
        caller.set(principal)
        needed = NEEDS.get(method)
        if needed is None or not principal.has(needed):
            raise Denied(
                f"{principal.name} may not call {method.rpartition('/')[2]}: it needs the role "
                f"{(needed or Role.admin).name} over some collections",
                principal=principal.name,
            )
        return principal

    def _deadline(self, method: str, context: Context) -> AbstractAsyncContextManager[object]:
        return asyncio.timeout(self._deadlines.seconds(method, context.time_remaining()))


@dataclass(frozen=True, slots=True)
class Sent:
    """A request as it came: nothing reads it before it is known who has sent it, and that they
    may.
    """

    data: bytes
    deserialize: Callable[[bytes], Any]


@dataclass(frozen=True, slots=True)
class _Call:
    """The request of a call, and the counter that hears of the bytes of its answers."""

    request: Any
    sent: Callable[[int], None]


async def _read(method: str, request: Sent) -> Any:
    """The message, with fields that handlers need not look at. Raises: UsageError."""

    def read() -> Any:
        try:
            message = request.deserialize(request.data)
        except DecodeError:
            raise UsageError(
                f"the request of {method} is no message of it", reason="message"
            ) from None
        validate(message)
        return message

    return await beside(len(request.data), read)


def _size(message: Any) -> int:
    """Bytes of a message."""
    return int(message.ByteSize())


def _waits(request: Any) -> bool:
    """Whether the caller gave time to wait for an instant to become definite."""
    return bool(getattr(request, "wait_s", 0.0) > 0)
