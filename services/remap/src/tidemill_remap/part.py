"""The part of remap in the work on a source: a binding each interval."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tidemill.catalog.made.sources import SourceCollections, SourcePart
from tidemill.host.pace import Paces
from tidemill.host.resting import Rest
from tidemill.host.speed import Speed
from tidemill.runtime.clock import Clock
from tidemill.shard import Collections
from tidemill_remap.driver import Probe, RemapDriver


@dataclass(frozen=True, slots=True)
class BindContext:
    """Dependencies of binding."""

    collections: Collections
    clock: Clock
    paces: Paces


class BindPart(SourcePart):
    """Binds what `probe` says, until the source is deleted."""

    def __init__(
        self, made: SourceCollections, part: str, probe: Probe, context: BindContext
    ) -> None:
        super().__init__(made, part)
        self._probe = probe
        self._context = context
        self._arriving = Speed(context.clock)
        stored = made.stored
        self.driver = RemapDriver(
            made.source, made.remap, context.collections, context.clock, self._interval_ms,
            stored.bound_from, self._rest(), shared=stored.shares is not None,
        )  # fmt: skip

    @property
    def _interval_ms(self) -> int:
        return int(self.made.spec.timestamp_interval)

    def _rest(self) -> Rest | None:
        """The rest of the source; None if something else than its rows changes its collections.

        A pace lets all that is bound together leave at one upper, so shared bindings follow none.
        """
        made, event = self.made, self.made.spec.event_time
        bound = [made.remap, made.raw, made.raw_letters]
        if made.stored.shares is not None or (made.staged and event is None):
            return None
        if event is not None:
            if event.idle_timeout is not None or event.silence is not None:
                return None
            bound += [made.event_map, made.letters]
        pace = self._context.paces.of(self._interval_ms)
        return Rest(made.stored.prefix, bound, self._context.collections, pace)

    async def work(self, ready: Callable[[], None]) -> None:
        """Bind until cancelled."""
        ready()
        await self.driver.mint_forever(self._probe_and_note)

    async def _probe_and_note(self) -> dict[int, int]:
        """The offsets that a probe finds; their growth is noted."""
        known = await self._probe()
        self._arriving.note(sum(known.values()))
        return known

    def details(self) -> dict[str, object]:
        """Offsets, counts, and which bindings it shares."""
        counts, shares = self.driver.counts, self.made.stored.shares
        found: dict[str, object] = {
            "offsetsKnown": _by_partition(counts.known),
            "offsetsBound": _by_partition(counts.bound),
            "arrivesPerSecond": round(self._arriving.per_s(), 1),
            "bindings": counts.minted,
            "mintsLost": counts.lost,
        }
        if shares is not None:
            found |= {"remap": f"{shares}/remap", "standsBy": self.driver.stands_by}
        return found


def _by_partition(offsets: dict[int, int]) -> dict[str, int]:
    return {str(partition): offset for partition, offset in sorted(offsets.items())}
