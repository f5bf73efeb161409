"""A proxy in front of a server: it can fall silent, refuse, be slow, or cut what is connected."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from typing import Literal

Mode = Literal["open", "silent", "refusing", "slow", "cutting"]
CHUNK_BYTES = 64 * 1024


class Proxy:
    """Passes bytes between clients and one server on this machine, as `mode` says.

    `silent`: nothing more passes, in either direction, until it is open again. `refusing`:
    connections are closed, new ones too. `slow`: every piece waits `delay_s` each way. `cutting`:
    each piece breaks every connection, and is lost.
    """

    def __init__(self, port: int, *, delay_s: float = 0.3) -> None:
        self.port = 0
        self.passed: Counter[Mode] = Counter()
        """Connections that were asked for, by the mode of then."""
        self.pieces: Counter[Mode] = Counter()
        """Pieces of data that arrived to be passed on, by the mode of then."""
        self._target = port
        self._delay_s = delay_s
        self._mode: Mode = "open"
        self._opened = asyncio.Event()
        self._opened.set()
        self._server: asyncio.Server | None = None
        self._connected: set[asyncio.StreamWriter] = set()

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return len(self._connected) // 2

    async def start(self) -> None:
        """Listen on a free port, which is `port` from then on."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def set_mode(self, mode: Mode) -> None:
        """Set the fate of bytes from now on."""
        self._mode = mode
        if mode == "silent":
            self._opened.clear()
        else:
            self._opened.set()
        if mode == "refusing":
            self.cut()

    def cut(self) -> None:
        """Break every connection there is."""
        for writer in tuple(self._connected):
            writer.transport.abort()

    async def stop(self) -> None:
        """Close everything."""
        self.set_mode("refusing")
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.passed[self._mode] += 1
        await self._opened.wait()
        if self._mode == "refusing":
            writer.transport.abort()
            return
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        ends = {writer, back}
        self._connected |= ends
        try:
            await asyncio.gather(self._pump(reader, back), self._pump(there, writer))
        finally:
            self._connected -= ends
            for end in ends:
                end.close()
                with suppress(OSError):
                    await end.wait_closed()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(CHUNK_BYTES):
                self.pieces[self._mode] += 1
                if self._mode == "cutting":
                    self.cut()
                    break
                if self._mode == "slow":
                    await asyncio.sleep(self._delay_s)  # noqa: TID251  real servers run in real time
                await self._opened.wait()
                sink.write(data)
                await sink.drain()
        sink.close()
