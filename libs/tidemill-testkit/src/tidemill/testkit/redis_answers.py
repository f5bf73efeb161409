"""A Redis of a test that answers as it is told: garbage, another answer's shape, or too much."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

SETTINGS = ("appendonly", "yes", "appendfsync", "always", "no-appendfsync-on-rewrite", "no")

NOT_ANSWERS = {
    "bytes": b"\xff\x00\r\n",
    "a text": b"+OK\r\n",
    "a number": b":7\r\n",
    "a number of 6,000 digits": b":" + b"9" * 6_000 + b"\r\n",
    "no value": b"$-1\r\n",
    "a negative length": b"$-7\r\n",
    "an empty text": b"$0\r\n\r\n",
    "no entry": b"*1\r\n$-1\r\n",
    "a deep list": b"*1\r\n" * 3_000 + b":1\r\n",
    "another protocol": b"%1\r\n+a\r\n+b\r\n",
    "an entry without its field": b"*1\r\n*2\r\n$3\r\n5-1\r\n*2\r\n$1\r\ne\r\n$1\r\nx\r\n",
    "an entry without a number": b"*1\r\n*2\r\n$3\r\nabc\r\n*2\r\n$1\r\nd\r\n$1\r\nx\r\n",
    "an entry of a number": b"*1\r\n*2\r\n$3\r\n5-1\r\n*2\r\n$1\r\nd\r\n:7\r\n",
    "loading": b"-LOADING Redis is loading the dataset in memory\r\n",
    "read only": b"-READONLY You can't write against a read only replica.\r\n",
    "out of memory": b"-OOM command not allowed when used memory > 'maxmemory'.\r\n",
    "another node": b"-MOVED 1 127.0.0.1:1\r\n",
    "an error of bytes": b"-\xff\xfe\r\n",
    "the end of the connection": b"",
}
"""Answers to any command that are none, by name."""


def bulk(*texts: str | bytes) -> bytes:
    """Texts as a server writes them, one after the other."""
    data = [text if isinstance(text, bytes) else text.encode() for text in texts]
    return b"".join(b"$%d\r\n%s\r\n" % (len(each), each) for each in data)


@dataclass(slots=True)
class OddRedis:
    """Answers of a durable server, and in place of those to some commands others.

    An empty answer ends the connection. Answers `in_turn` come once each, before those `instead`.
    `asked` are the commands that came.
    """

    url: str = ""
    instead: dict[str, bytes] = field(default_factory=dict)
    in_turn: dict[str, list[bytes]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def answer(self, command: Sequence[bytes]) -> bytes:
        """Bytes of an answer."""
        name = command[0].decode().upper()
        self.asked.append(name)
        if self.in_turn.get(name):
            return self.in_turn[name].pop(0)
        if name in self.instead:
            return self.instead[name]
        match name:
            case "INFO" if command[1].lower() == b"cluster":
                return bulk("# Cluster\r\ncluster_enabled:0\r\n")
            case "INFO":
                return bulk("# Replication\r\nrole:master\r\nconnected_slaves:0\r\n")
            case "CONFIG":
                return b"*6\r\n" + bulk(*SETTINGS)
            case "XRANGE" | "XREVRANGE":
                return b"*1\r\n*2\r\n" + bulk("5-1") + b"*2\r\n" + bulk("d", "x")
            case "SMEMBERS":
                return b"*1\r\n" + bulk("a")
            case "EVALSHA" | "EVAL" | "SADD" | "EXISTS" | "HINCRBY":
                return b":1\r\n"
            case _:
                return b"+OK\r\n"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while (command := await _command(reader)) and (answer := self.answer(command)):
                writer.write(answer)
                await writer.drain()
        writer.close()


@asynccontextmanager
async def odd_redis() -> AsyncIterator[OddRedis]:
    """A server on a free port of this machine, for as long as the body runs."""
    redis = OddRedis()
    server = await asyncio.start_server(redis._serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    redis.url = f"redis://{host}:{port}/0"
    try:
        yield redis
    finally:
        server.close()


async def _command(reader: asyncio.StreamReader) -> list[bytes]:
    """The words of a command; none at the end of the connection."""
    words = []
    for _ in range(int((await reader.readline())[1:] or b"0")):
        size = int((await reader.readline())[1:])
        words.append((await reader.readexactly(size + 2))[:-2])
    return words
