"""Egress of Kafka's clients: checked for every connection, also to brokers that others name.

aiokafka resolves names itself and offers no hook for the resolved address. Its connections are made
by one function, which gets the name of the client. This module takes the place of that function,
and is tied to one minor version.
"""

from __future__ import annotations

import asyncio
from typing import Any, Self

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


async def _connect_gated(host: str, port: int, **options: Any) -> Any:  # aiokafka ships no types
    name = options.get("client_id")
    try:
        if not isinstance(name, GatedId):
            return await create_conn(host, port, **options)
        connection = AIOKafkaConnection(host, port, **options)
        connection._loop = _GatedLoop(connection._loop, name.egress)
        await connection.connect()
        return connection
    except KafkaConnectionError:
        raise  # in words of the client
    except KafkaError as error:
        # A broker's answer to a login may repeat it, and the client writes errors into its log.
        raise type(error)() from None


aiokafka.client.create_conn = _connect_gated
