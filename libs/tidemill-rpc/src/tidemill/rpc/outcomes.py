"""Ends of calls on the client: messages, or the error that the server raised."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import grpc.aio

from tidemill.errors import TidemillError, Unavailable
from tidemill.rpc.status import DETAILS_KEY, UNREACHABLE, away, from_status

CALL_S = 30.0
"""The deadline of a call whose caller names none."""


CLOSED = "the connection was closed during the call"

Explain = Callable[[], Awaitable[str | None]]
"""Why the server cannot be reached, if anything can be found out."""


async def _nothing() -> str | None:
    return None


def begun(method: Any, request: Any, **options: Any) -> Any:
    """A call that is under way.

    Raises: Unavailable if somebody has closed the channel meanwhile.
    """
    try:
        return method(request, **options)
    except grpc.aio.UsageError as error:
        raise _closed(error, writes=False) from error


async def ends(call: Any, *, writes: bool = False, explain: Explain = _nothing) -> Any:
    """The reply of a unary call; `explain` is asked when the server is not reachable."""
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        found = _error(error, writes)
    except grpc.aio.UsageError as error:
        found = _closed(error, writes=writes)
    except asyncio.CancelledError:
        if _asked_to_end():
            raise
        found = away(CLOSED, writes=writes)
    raise await _explain(found, explain)


async def messages_of(call: Any, *, explain: Explain = _nothing) -> AsyncGenerator[Any, None]:
    """The messages of a streaming call; the call ends when the loop over them is left."""
    found: TidemillError | None = None
    try:
        async for message in call:
            yield message
    except grpc.aio.AioRpcError as error:
        found = _error(error, writes=False)
    except grpc.aio.UsageError as error:
        found = _closed(error, writes=False)
    except asyncio.CancelledError:
        if _asked_to_end():
            raise
        found = away(CLOSED, writes=False)
    finally:
        call.cancel()
    if found is not None:
        raise await _explain(found, explain)


def _closed(error: grpc.aio.UsageError, *, writes: bool) -> TidemillError:
    """Somebody else has closed the channel. Raises: the error, if it is about anything else."""
    if "closed" not in str(error).lower():
        raise error
    return away(CLOSED, writes=writes)


def _asked_to_end() -> bool:
    """Whether it is this task that is cancelled: a channel that somebody closes cancels its
    calls.
    """
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


async def _explain(error: TidemillError, explain: Explain) -> TidemillError:
    """The error, or one that says more."""
    if error.details.get("reason") != UNREACHABLE:
        return error
    says = await explain()
    return (
        error if says is None else Unavailable(f"no connection to the server: {says}", reason="tls")
    )


def _error(error: grpc.aio.AioRpcError, writes: bool) -> TidemillError:
    details = next((value for key, value in _trailing(error) if key == DETAILS_KEY), None)
    found = details if isinstance(details, bytes) else None
    return from_status(error.code(), error.details() or "", found, writes=writes)


def _trailing(error: grpc.aio.AioRpcError) -> list[tuple[str, str | bytes]]:
    return [(str(key), value) for key, value in error.trailing_metadata() or ()]
