"""Proofs in the messages of an action."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from tidemill.catalog.made.actions import ActionCollections
from tidemill.datalog.records import parse_record
from tidemill.errors import TidemillError, Unavailable
from tidemill.host.context import Context
from tidemill.host.questions.histories import Histories, holding
from tidemill.host.questions.limits import QuestionLimits, Reach
from tidemill.host.questions.proving import Prover
from tidemill.host.questions.working import Workers
from tidemill.time import frontier, sole_time
from tidemill_compute.actions.outbox import END, Firing, Sink, Took, untold
from tidemill_compute.holds import Holds

PROOF_LINES, LINE_CHARS = 20, 300
"""Lines of a proof in a message, and characters of each."""
PROOF_S = 10.0
"""Seconds after which a message goes without its proof."""
PROVED_OF_GROUP = 5
"""Events of a group that a message proves."""
AT_ONCE = 20
"""Firings that are proved before the first of them is told."""
LEASE_MS = 60_000


class Proves(Protocol):
    """Source of proofs."""

    async def text_of(self, firing: Firing) -> str:
        """The proof of a firing, or why there is none. Raises: Unavailable."""


class Proofs:
    """Proofs of what an action tells, as of the instants of its events.

    The proof of an end is that of the last instant before it. The inputs of the view are held from
    the first event that is not told. A proof ends at the border of the view.
    """

    def __init__(self, made: ActionCollections, host: Context) -> None:
        self._made = made
        self._host = host
        self._holds = Holds(host.collections, f"action:{made.stored.prefix}")
        self._held: set[str] = set()
        limits = replace(QuestionLimits.of(host.settings.limits), seconds=PROOF_S)
        self._workers = Workers(limits)
        histories = Histories(host.collections, holding(host.collections, LEASE_MS), self._workers)
        self._prover = Prover(host.catalog, histories, self._workers, Reach(views=0))

    async def text_of(self, firing: Firing) -> str:
        """The proof of a firing, or why there is none; of a group, those of its first events.

        Raises: Unavailable.
        """
        if not firing.events:
            return await self._text_of_event(firing)
        told = [await self._text_of_event(each) for each in firing.events[:PROVED_OF_GROUP]]
        if len(firing.events) > len(told):
            told.append(f"… {len(firing.events) - len(told)} more events")
        return "\n\n".join(told)

    async def _text_of_event(self, firing: Firing) -> str:
        view, record = self._made.spec.view, firing.record
        at = firing.instant - (firing.phase == END)
        ask = f"tidemill why '{view}/{record}' --as-of {at}"
        try:
            asked = await self._workers.read_beside(record, parse_record, record)
            found = await self._prover.prove(self._host.catalog.view(view), asked, at)
        except Unavailable:
            raise
        except TidemillError as error:
            return f"no proof: {error}\n{ask}"
        return shortened(found.text, ask)

    async def hold_forever(self, interval_s: float) -> None:
        """Hold the inputs from the first event that is not told, until cancelled."""
        while True:
            await self._hold()
            await self._host.clock.sleep(interval_s)

    async def _hold(self) -> None:
        done = (await self._host.collections.status(self._made.done)).upper
        wanted = set[str]()
        for collection in self._made.read_in_proofs():
            status = await self._host.collections.status(collection)
            if status.timeline == self._made.watched.timeline:
                wanted.add(collection)
        for collection in self._held - wanted:
            await self._holds.give_up(collection)
        for collection in sorted(wanted):
            await self._holds.take(collection)
            if not done.empty:
                await self._holds.downgrade(collection, frontier(max(0, sole_time(done) - 2)))
        self._held = wanted


class ProvingSink:
    """Guarantees of the sink inside, which is handed each firing with its proof."""

    def __init__(self, inner: Sink, proofs: Proves) -> None:
        self._inner = inner
        self._proofs = proofs

    @property
    def at_most_once(self) -> bool:
        return self._inner.at_most_once

    async def recover(self, doubtful: Sequence[Firing]) -> frozenset[str]:
        return await self._inner.recover(doubtful)

    async def fire(self, firings: Sequence[Firing], took: Took = untold) -> None:
        for start in range(0, len(firings), AT_ONCE):
            proved = [await self._prove(each) for each in firings[start : start + AT_ONCE]]
            await self._inner.fire(proved, took)

    async def _prove(self, firing: Firing) -> Firing:
        return firing if firing.proof else replace(firing, proof=await self._proofs.text_of(firing))

    async def close(self) -> None:
        await self._inner.close()


def shortened(proof: str, ask: str) -> str:
    """The first lines of a proof; where there are more, the question that has all of them."""
    lines = proof.splitlines()
    shown = [each if len(each) <= LINE_CHARS else f"{each[:LINE_CHARS]}…" for each in lines]
    if len(lines) > PROOF_LINES:
        shown[PROOF_LINES:] = [f"… {len(lines) - PROOF_LINES} more lines: {ask}"]
    return "\n".join(shown)
