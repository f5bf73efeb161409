"""Proxies in a process of their own: traffic through them does not wait for the process that
checks.

python -m tidemill.testkit.faults.proxies redis=16379 s3=19000

prints the ports at which they listen. Each line of standard input, such as `redis slow` or `s3
cut`, is answered by a line of JSON that counts the traffic so far. It ends with its input.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import get_args

from tidemill.testkit.faults.proxy import Mode, Proxy


@dataclass(slots=True)
class Proxies:
    """Proxies by name, each before one server; `ports` is where they listen."""

    ports: Mapping[str, int]
    _process: Process
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def set_mode(self, name: str, mode: Mode) -> int:
        """From now on this happens to bytes; how much the mode has met so far."""
        return await self._tell(f"{name} {mode}")

    async def count_met(self, name: str, mode: Mode) -> int:
        """Number of connections and pieces of data that a mode has met so far."""
        return await self._tell(f"{name} met {mode}")

    async def cut(self, name: str) -> int:
        """Break every connection; how many there were."""
        return await self._tell(f"{name} cut")

    async def _tell(self, line: str) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        async with self._turn:
            self._process.stdin.write(f"{line}\n".encode())
            return int(json.loads(await self._process.stdout.readline()))


@asynccontextmanager
async def proxies(targets: Mapping[str, int]) -> AsyncIterator[Proxies]:
    """Proxies before the servers on these ports of this machine."""
    told = [f"{name}={port}" for name, port in targets.items()]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tidemill.testkit.faults.proxies", *told,
        stdin=PIPE, stdout=PIPE,
        start_new_session=True,  # a signal to the group is for the one that ends them in order
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield Proxies(json.loads(await process.stdout.readline()), process)
    finally:
        with suppress(ProcessLookupError):  # it may have ended by itself
            process.kill()
        await process.wait()


async def _serve(targets: Mapping[str, int]) -> None:
    made = {name: Proxy(port) for name, port in targets.items()}
    for proxy in made.values():
        await proxy.start()
    print(json.dumps({name: proxy.port for name, proxy in made.items()}), flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        name, verb, *rest = line.split()
        print(json.dumps(_done(made[name], verb, rest)), flush=True)
    os._exit(0)  # whoever asked is gone, and connections need no farewell


def _done(proxy: Proxy, verb: str, rest: list[str]) -> int:
    if verb == "cut":
        count = proxy.connections
        proxy.cut()
        return count
    mode = next(each for each in get_args(Mode) if each == (rest[0] if verb == "met" else verb))
    if verb != "met":
        proxy.set_mode(mode)
    return proxy.passed[mode] + proxy.pieces[mode]


if __name__ == "__main__":
    asyncio.run(
        _serve({name: int(port) for name, _, port in (a.partition("=") for a in sys.argv[1:])})
    )
