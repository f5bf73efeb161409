"""Waiting for a running server: until its views have come somewhere, or say why they will not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow.compute as pc

from tidemill.client import Client
from tidemill.errors import NotYet, TidemillError, Unavailable
from tidemill.rpc.messages import Json
from tidemill.runtime.clock import Clock
from tidemill_flights.scenario import iso
from tidemill_flights.watch import Watch

STUCK_S_MAX = 240.0
LOOK_INTERVAL_S = 0.05
HEALTH_INTERVAL_S = 5.0
BINDING_MS_MAX = 2_000
"""Rows that were acknowledged are bound to a system time at most this much later."""


@dataclass(slots=True)
class Waiter:
    """Waits on one server. `views` are watched, each with the streams that it reads."""

    client: Client
    watch: Watch
    clock: Clock
    views: Mapping[str, Sequence[str]]
    tick: Callable[[], None]

    def least(self) -> int:
        """The upper of the slowest view at the last look."""
        return min(self.watch.upper(view) for view in self.views)

    async def catch_up(self, uppers: Mapping[str, int]) -> None:
        """Return once each named collection or view has come to its upper.

        Raises: Unavailable if a resource stalls, or nothing moves for two minutes.
        """
        before: list[int] = []
        moved_s = healthy_s = self.clock.monotonic_s()
        while True:
            now = [self.watch.upper(name) for name in uppers]
            if all(at >= wanted for at, wanted in zip(now, uppers.values(), strict=True)):
                return
            now_s = self.clock.monotonic_s()
            if now != before:
                before, moved_s = now, now_s
            elif now_s - moved_s > STUCK_S_MAX:
                slow = ", ".join(
                    f"{name} at {iso(at)}" for name, at in zip(uppers, now, strict=True)
                )
                raise Unavailable(f"nothing has moved for {STUCK_S_MAX:.0f} s: {slow}")
            if now_s - healthy_s > HEALTH_INTERVAL_S:
                healthy_s = now_s
                await self._check_health()
            self.tick()
            await self.clock.sleep(LOOK_INTERVAL_S)

    async def await_running(self, kind: str, name: str) -> Mapping[str, Json]:
        """Return once the resource does its work; its details."""
        while True:
            status = await asyncio.to_thread(self.client.describe, kind, name)
            if status.ready:
                return status.details
            await self._check_health()
            self.tick()
            await self.clock.sleep(LOOK_INTERVAL_S)

    async def views_within(self, upper: int) -> None:
        """Return once no view is behind `upper`."""
        await self.catch_up(dict.fromkeys(self.views, upper))

    async def views_complete(self) -> dict[str, int]:
        """Return once every view has taken in all that was acknowledged; the upper of each."""
        streams = {stream for reads in self.views.values() for stream in reads}
        frontiers = {stream: await self._event_frontier(stream) for stream in sorted(streams)}
        uppers = {
            view: min(frontiers[stream] for stream in reads) for view, reads in self.views.items()
        }
        await self.catch_up(uppers)
        return uppers

    async def await_fired(self, action: str, upper: int, told: Callable[[], int]) -> int:
        """Return once all firings below `upper` are in the outbox and have been told; how many.

        `told` counts the effects that can be seen from outside.
        """
        while True:
            answer = await asyncio.to_thread(self.client.query, f"{action}/outbox")
            if not answer.upper.less_equal(upper - 1) and told() >= answer.table.num_rows:
                return int(answer.table.num_rows)
            await self._check_health()
            self.tick()
            await self.clock.sleep(LOOK_INTERVAL_S)

    async def _event_frontier(self, stream: str) -> int:
        """The event frontier once every record that was acknowledged before this call is read."""
        instant = self.clock.now_ms() + BINDING_MS_MAX
        while True:
            self.tick()
            try:
                answer = await asyncio.to_thread(
                    self.client.query, f"{stream}/eventmap", instant, timeout_s=10.0
                )
                break
            except NotYet:
                await self._check_health()
        table = answer.table
        stands = table.filter(pc.less(table["partition"], 0))["frontier"]
        return int(stands[0].as_py()) if len(stands) else 0

    async def _check_health(self) -> None:
        try:
            resources = await asyncio.to_thread(self.client.get)
        except TidemillError:
            return
        for each in resources:
            if each.reason == "Stalled":
                raise Unavailable(f"{each.kind}/{each.name} has stalled: {each.message}")
