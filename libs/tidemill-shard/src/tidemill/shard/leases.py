"""Which leases are over, by what one process has heard of their holders and its own monotonic
clock.
"""

from __future__ import annotations

from tidemill.shard.ports import Clock
from tidemill.shard.state import State


class Leases:
    """A lease is over once this process has heard of no renewal for its length, and never before.

    Wall clocks are not compared: a process whose clock is ahead, or that has just begun, ends
    nothing too soon.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heard: dict[str, dict[str, tuple[int, float]]] = {}

    def over(self, collection: str, state: State) -> list[str]:
        """The capabilities of a version whose leases are over; it counts as heard now.

        Cost: O(holds).
        """
        now_s = self._clock.monotonic_s()
        before = self._heard.get(collection, {})
        heard: dict[str, tuple[int, float]] = {}
        over: list[str] = []
        for holds in (state.reads, state.writes):
            for name, hold in holds.items():
                if hold.lease_ms is None:
                    continue
                renewals, at_s = before.get(name, (-1, now_s))
                at_s = at_s if renewals == hold.renewals else now_s
                heard[name] = hold.renewals, at_s
                if now_s - at_s > hold.lease_ms / 1000:
                    over.append(name)
        self._heard[collection] = heard
        return over
