"""A replica with claims on a virtual loop: its work, and beside it, or on the same loop, what keeps
its claims.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from random import Random  # noqa: TID251  seeded, so that a failure repeats
from typing import Any, TypeVar

from tidemill.shard.claims import Claim, Claimant, KeptClaimant, work_claimed
from tidemill.shard.ports import Consensus
from tidemill.testkit.faults.virtual_loop import LoopClock, Process, VirtualLoop

T = TypeVar("T")
LEASE_S = 6.0


@dataclass(eq=False, slots=True)
class Replica:
    """Two processes of the virtual loop that live and die together, as threads do.

    While only `work` is stopped, the replica is busy; while both are, it stands still. They are one
    and the same if claims are kept on the loop of the work.
    """

    work: Process
    keeper: Process
    clock: LoopClock
    claimant: KeptClaimant
    main: asyncio.Task[None]

    @property
    def dead(self) -> bool:
        return self.work.dead or self.keeper.dead

    @property
    def processes(self) -> tuple[Process, ...]:
        """Those that there are."""
        return tuple(dict.fromkeys((self.work, self.keeper)))

    def kill(self) -> None:
        """Never run again."""
        for process in self.processes:
            process.kill()

    def stand_still(self) -> None:
        """Run no more until it goes on."""
        for process in self.processes:
            process.stopped = True

    def go_on(self, loop: VirtualLoop) -> None:
        """Go on where it was, unless it is dead."""
        for process in self.processes:
            loop.resume(process)


def begin_replica(
    loop: VirtualLoop,
    random: Random,
    name: str,
    consensus: Consensus,
    wanted: Callable[[], Awaitable[Iterable[str]]],
    work: Callable[[KeptClaimant, Claim], Coroutine[Any, Any, None]],
    *,
    kept: bool = True,
) -> Replica:
    """A replica of the group `role` that works from now on; claims are `kept` beside the work, or
    with it.
    """
    process = Process(name)
    keeper = Process(f"{name}, keeper") if kept else process
    clock = LoopClock(loop, 0)
    claimant = Claimant(
        consensus, "role", clock, lambda: f"{random.getrandbits(128):032x}", name=name, lease_s=LEASE_S
    )  # fmt: skip

    def there(call: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        return loop.begin(keeper, call)

    held = KeptClaimant(claimant, there, clock)
    loop.begin(keeper, held.keep())
    main = loop.begin(process, work_claimed(held, wanted, lambda c: work(held, c), clock))
    return Replica(process, keeper, clock, held, main)
