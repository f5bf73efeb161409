"""A real process that claims items and does their work in a sink with a fence, until it is
killed.
"""

from __future__ import annotations

import asyncio
import socket
import socketserver
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from secrets import token_hex

import msgspec

from tidemill.errors import Fenced
from tidemill.runtime.clock import SystemClock
from tidemill.shard.claims import Claim, Claimant, Keeper, work_claimed
from tidemill.shard.stores import open_claims
from tidemill.testkit.faults.forked_processes import serve_forks

EFFECT_S = 0.05
"""An effect is under way for so long, out of reach of whoever asked for it."""
ENDED = -1


class Replica(msgspec.Struct, frozen=True):
    """The task of a process. It ends when the sink says so."""

    name: str
    consensus: str
    sink: int
    items: Sequence[str]
    lease_s: float


class Effect(msgspec.Struct, frozen=True):
    """An effect that is asked of the sink, and kept there; number 0 asks for the last one."""

    item: str
    number: int
    epoch: int
    name: str


class FencedSink:
    """Effects as they happened; only the greatest epoch of an item is served.

    At a port of this machine.
    """

    def __init__(self) -> None:
        self.effects: list[Effect] = []
        self.refused: list[Effect] = []
        self.ended = False
        self._epochs: dict[str, int] = {}
        self._lock = threading.Lock()
        sink = self

        class Asked(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                asked = msgspec.json.decode(self.rfile.readline(), type=Effect)
                self.wfile.write(msgspec.json.encode(sink._answer(asked)))

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Asked)
        self._server.daemon_threads = True
        self._serving = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._serving.start()

    @property
    def port(self) -> int:
        """The port of the sink."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Serve nobody any more."""
        self._server.shutdown()
        self._serving.join()
        self._server.server_close()

    def _answer(self, asked: Effect) -> int | None:
        """The last number of the item; None if the epoch is too small."""
        with self._lock:
            if self.ended:
                return ENDED
            if asked.epoch < self._epochs.get(asked.item, 0):
                self.refused.append(asked)
                return None
            self._epochs[asked.item] = asked.epoch
            if asked.number:
                self.effects.append(asked)
            return max((e.number for e in self.effects if e.item == asked.item), default=0)


def asked(port: int, effect: Effect) -> int:
    """The answer of the sink. Raises: Fenced."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(msgspec.json.encode(effect) + b"\n")
        answer = msgspec.json.decode(connection.makefile("rb").read(), type=int | None)
    if answer is None:
        raise Fenced("a later epoch was here", item=effect.item, epoch=effect.epoch)
    return answer


async def live_on(replica: Replica) -> None:
    """Claim and work until the sink has ended."""
    clock, ended = SystemClock(), asyncio.Event()
    consensus, keeper = open_claims(replica.consensus), Keeper(clock)
    unkept = Claimant(
        consensus, "role", clock, partial(token_hex, 16), name=replica.name, lease_s=replica.lease_s
    )
    claimant = keeper.kept(unkept)

    async def list_wanted() -> Sequence[str]:
        return replica.items

    def reach(claim: Claim, number: int) -> int:
        threading.Event().wait(EFFECT_S if number else 0)
        return asked(replica.sink, Effect(claim.item, number, claim.epoch, replica.name))

    async def work(claim: Claim) -> None:
        number = 0
        while not ended.is_set():
            claimant.check(claim)
            number = await asyncio.to_thread(reach, claim, number) + 1
            if number == ENDED + 1:
                ended.set()

    working = asyncio.create_task(work_claimed(claimant, list_wanted, work, clock))
    ending = asyncio.create_task(ended.wait())
    await asyncio.wait((working, ending), return_when=asyncio.FIRST_COMPLETED)
    for task in (working, ending):
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    await keeper.close(consensus.close)


def live(encoded: bytes) -> None:
    """One life: to its end or until it is killed."""
    asyncio.run(live_on(msgspec.json.decode(encoded, type=Replica)))


if __name__ == "__main__":
    serve_forks(live, sys.stdin.buffer)
