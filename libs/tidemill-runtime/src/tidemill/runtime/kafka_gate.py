"""Connections of Kafka's clients: egress is checked for each, also to brokers that others name, and
one that a start leaves behind is closed.

aiokafka resolves names itself and offers no hook for the resolved address. Its connections are made
by one function, which gets the name of the client. This module takes the place of that function,
and is tied to one minor version.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Self
from weakref import WeakSet

import aiokafka.client
from aiokafka.conn import AIOKafkaConnection, create_conn
from aiokafka.errors import KafkaConnectionError, KafkaError

from tidemill.runtime.places import Egress


class GatedId(str):
    """The name of a client whose connections are checked."""

    __slots__ = ("egress",)
    egress: Egress

    def __new__(cls, name: str, egress: Egress) -> Self:
        made = super().__new__(cls, name)
        made.egress = egress
        return made


class _GatedLoop:
    """The event loop, but for connections, which are made to addresses that were checked."""

    def __init__(self, loop: asyncio.AbstractEventLoop, egress: Egress) -> None:
        self._loop = loop
        self._egress = egress

    def __getattr__(self, name: str) -> Any:  # whatever a loop has
        return getattr(self._loop, name)

    async def create_connection(self, protocol: Any, host: str, port: int, *, ssl: Any) -> Any:
        """As of a loop; TLS is for the name."""
        sock = await self._egress.connect_allowed(host, port)
        name = None if ssl is None else host
        return await self._loop.create_connection(
            protocol, sock=sock, ssl=ssl, server_hostname=name
        )


_MADE: ContextVar[WeakSet[AIOKafkaConnection] | None] = ContextVar("made", default=None)
"""The connections of the client that is starting."""


@contextmanager
def closing_given_up() -> Iterator[None]:
    """Close the connections that are made within, if it is left by an error.

    A client does not know its first connection before it has learned of all brokers. A start that
    is given up before leaves it open, and `stop` finds nothing to close.
    """
    made: WeakSet[AIOKafkaConnection] = WeakSet()
    token = _MADE.set(made)
    try:
        yield
    except BaseException:
        for connection in made:
            connection.close()
        raise
    finally:
        _MADE.reset(token)


async def _connect_gated(host: str, port: int, **options: Any) -> Any:  # aiokafka ships no types
    name = options.get("client_id")
    try:
        if isinstance(name, GatedId):
            connection = AIOKafkaConnection(host, port, **options)
            connection._loop = _GatedLoop(connection._loop, name.egress)
            await connection.connect()
        else:
            connection = await create_conn(host, port, **options)
    except KafkaConnectionError:
        raise  # in words of the client
    except KafkaError as error:
        # A broker's answer to a login may repeat it, and the client writes errors into its log.
        raise type(error)() from None
    made = _MADE.get()
    if made is not None:
        made.add(connection)
    return connection


aiokafka.client.create_conn = _connect_gated
