"""Interceptors of our own services: metrics, authentication, deadline, validation, error status.

Health and reflection are left alone; they keep the conventions of their own packages.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import (
    asynccontextmanager,
    contextmanager,
    suppress,
)
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from tidemill.errors import Exhausted, TidemillError, UsageError
from tidemill.rpc.calls import Calls, Origin
from tidemill.rpc.status import DETAILS_KEY, sayable, to_status
from tidemill.rpc.turns import beside
from tidemill.rpc.validation import validate

WATCHERS = "whoever watches health"
"""For whom calls are counted that say nothing of who makes them."""

Context = Any  # grpc.aio.ServicerContext; its stubs are generic in types that interceptors ignore
"""The context of a call on the server."""


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Surrounds each call with the frame of all ports; requests are read in it, and errors become a
    status.
    """

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

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
        admissions = self._calls.admissions
        if admissions is None or not found.response_streaming or found.request_streaming:
            return found  # type: ignore[no-any-return]  # a handler as it came
        behavior = found.unary_stream

        async def answers(request: Any, context: Context) -> Any:
            try:
                with admissions.admitted(WATCHERS, True, _size(request)):
                    return await behavior(request, context)
            except Exhausted as error:
                self._calls.observer.refused(str(error.details.get("setting", "")))
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, error.message)

        return grpc.unary_stream_rpc_method_handler(
            answers, found.request_deserializer, found.response_serializer
        )

    def _around_unary(
        self, method: str, behavior: Callable[[Any, Context], Awaitable[Any]]
    ) -> Callable[[Any, Context], Awaitable[Any]]:
        async def answer(request: Sent, context: Context) -> Any:
            with _telling(context) as telling:
                async with self._surround(method, request, context, telling) as call:
                    message = await self._calls.in_steps(behavior(call.request, context))
                    call.sent(_size(message))
                    return message
            return None  # which gRPC does not send beside an error

        return answer

    def _around_stream(
        self, method: str, behavior: Callable[[Any, Context], AsyncIterator[Any]]
    ) -> Callable[[Any, Context], AsyncIterator[Any]]:
        async def answers(request: Sent, context: Context) -> AsyncIterator[Any]:
            with _telling(context) as telling:
                async with self._surround(method, request, context, telling) as call:
                    found = aiter(behavior(call.request, context))
                    with suppress(StopAsyncIteration):
                        while True:
                            message = await self._calls.in_steps(anext(found))
                            yield message
                            call.sent(_size(message))
                            await self._calls.count_sent(method)

        return answers

    def _around_streams(
        self, method: str, behavior: Callable[[Any, Context], AsyncIterator[Any]]
    ) -> Callable[[Any, Context], AsyncIterator[Any]]:
        """A call between services, which has no turns: what one sends is read as it comes."""

        async def messages(requests: AsyncIterator[Sent]) -> AsyncIterator[Any]:
            async for request in requests:
                yield await _read(method, request)

        async def answers(requests: AsyncIterator[Sent], context: Context) -> AsyncIterator[Any]:
            with _telling(context) as telling:
                async with self._surround(method, None, context, telling) as call:
                    async for message in behavior(messages(requests), context):
                        yield message
                        call.sent(_size(message))
                        self._calls.observer.sent(method)

        return answers

    @asynccontextmanager
    async def _surround(
        self, method: str, request: Sent | None, context: Context, telling: _Telling
    ) -> AsyncIterator[_Call]:
        """The call inside the frame of all calls. Raises: what it raises."""

        def identities() -> list[str]:
            return [each.decode(errors="replace") for each in context.peer_identities() or ()]

        sent = {str(key).lower(): str(value) for key, value in context.invocation_metadata() or ()}
        # IMPORTANT: asked now. Once the call is over gRPC has freed what knows, and to ask ends the
        # process.
        peer = str(context.peer())
        size = 0 if request is None else len(request.data)
        origin = Origin(method, peer, sent, identities, size, context.time_remaining())
        async with self._calls.around(origin) as answering:
            message: Any = None
            if request is not None:
                message = await self._calls.in_steps(_read(method, request))
                telling.waited = answering.waited = _waits(message)
            yield _Call(message, answering.sent)


@dataclass(slots=True)
class _Telling:
    """Whether a caller gave time to wait: an error is told to it in other words then."""

    waited: bool = False


@contextmanager
def _telling(context: Context) -> Iterator[_Telling]:
    """End the call with the status of an error, and the error here.

    NB: `abort` would keep the error, with the frames that it came through and all that they hold,
    in a cycle with the call. Of ten thousand errors the garbage collector would free these at once.
    """
    telling = _Telling()
    try:
        yield telling
    except TidemillError as error:
        status, details = to_status(error, waited=telling.waited)
        context.set_trailing_metadata(((DETAILS_KEY, details),))
        context.set_details(sayable(error.message[:1000]))
        context.set_code(status)
    except TimeoutError:
        context.set_details("the deadline passed")
        context.set_code(grpc.StatusCode.DEADLINE_EXCEEDED)


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
