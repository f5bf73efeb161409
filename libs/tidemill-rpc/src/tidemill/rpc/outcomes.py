"""How a call ends on the client: with its messages, or with the error that the server raised."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import grpc.aio

from tidemill.rpc.status import DETAILS_KEY, from_status
from tidemill.time import TidemillError

CALL_S = 30.0
"""The deadline of a call whose caller names none."""


async def ends(call: Any, *, writes: bool = False) -> Any:
    """The reply of a unary call."""
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise _error(error, writes) from None


async def raised(call: Any) -> AsyncGenerator[Any, None]:
    """The messages of a streaming call; the call ends when the loop over them is left."""
    try:
        async for message in call:
            yield message
    except grpc.aio.AioRpcError as error:
        raise _error(error, writes=False) from None
    finally:
        call.cancel()


def _error(error: grpc.aio.AioRpcError, writes: bool) -> TidemillError:
    details = next((value for key, value in _trailing(error) if key == DETAILS_KEY), None)
    found = details if isinstance(details, bytes) else None
    return from_status(error.code(), error.details() or "", found, writes=writes)


def _trailing(error: grpc.aio.AioRpcError) -> list[tuple[str, str | bytes]]:
    return [(str(key), value) for key, value in error.trailing_metadata() or ()]
