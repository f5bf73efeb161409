"""Connections of Kafka's clients: egress is checked for each, also to brokers that others name. An
answer that is none ends a connection, and one that a start leaves behind is closed.

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
from aiokafka.conn import AIOKafkaConnection
from aiokafka.errors import KafkaConnectionError, KafkaError

from tidemill.errors import UsageError
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


FRAME_BYTES_MAX = 256 << 20
"""Longest answer of a broker; fetches ask for 50 MB, and may get one record that is longer."""


class _BoundedReader:
    """The answers of a broker, but for those of a length that no memory is given to."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader

    def __getattr__(self, name: str) -> Any:  # whatever a stream has
        return getattr(self._reader, name)

    async def readexactly(self, count: int) -> bytes:
        """As of a stream. Raises: ConnectionError for a length of no answer."""
        if not 0 <= count <= FRAME_BYTES_MAX:
            raise ConnectionError(f"an answer of {count} bytes is none of Kafka")
        return await self._reader.readexactly(count)


class _GatedConnection(AIOKafkaConnection):  # type: ignore[misc]  # of a client without types
    """A connection that an answer which is none ends, as one that breaks would."""

    _reader: Any

    def _create_reader_task(self) -> Any:
        reader: Any = self._reader
        self._reader = _BoundedReader(reader)
        return super()._create_reader_task()

    @staticmethod
    async def _read(connection: Any) -> None:
        try:
            await AIOKafkaConnection._read(connection)
        except (OSError, EOFError):
            raise
        except Exception as error:  # whatever the client makes of bytes that are no answer
            kind = type(error).__name__
            raise ConnectionError(f"a broker answered what is none of Kafka: {kind}") from None


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
        connection = _GatedConnection(host, port, **options)
        if isinstance(name, GatedId):
            connection._loop = _GatedLoop(connection._loop, name.egress)
        await connection.connect()
    except (KafkaConnectionError, UsageError):
        raise  # in words of the client, or of our own gate
    except KafkaError as error:
        # A broker's answer to a login may repeat it, and the client writes errors into its log.
        raise type(error)() from None
    except (AssertionError, ValueError, LookupError, TypeError, AttributeError) as error:
        # Versions of calls that contradict each other, a login that is none.
        says = f"{host}:{port} does not speak Kafka: {type(error).__name__}"
        raise KafkaConnectionError(says) from None
    made = _MADE.get()
    if made is not None:
        made.add(connection)
    return connection


aiokafka.client.create_conn = _connect_gated
