"""Versions of several collections by one transaction of their store."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack

from tidemill.errors import Indeterminate, Unavailable
from tidemill.shard.log import CollectionLog, Transition
from tidemill.shard.ports import Attempt, GroupConsensus


async def commit_together(
    consensus: GroupConsensus, commits: Sequence[tuple[CollectionLog, Transition[object]]]
) -> bool:
    """Whether all transitions are durable, as if each log had committed its own.

    False: nobody knows of any of them, unless the answer of the store was lost. It then has all of
    them or none, and the logs look before they say anything. Nothing is read first: a log that
    would have to look, or that is in use, is left to its own commit. Cost: one compare-and-set.
    """
    if any(log.turn.locked() for log, _ in commits):
        return False
    async with AsyncExitStack() as turns:
        # IMPORTANT: a turn may have gone to another just now. It ends: a commit of one log waits
        # for no second turn. Groups take theirs in the order of names, so that no two of them wait
        # for each other.
        for log, _ in sorted(commits, key=lambda commit: commit[0].collection):
            await turns.enter_async_context(log.turn)
        planned = [log.plan(transition) for log, transition in commits]
        ready = [each for each in planned if each is not None]
        if len(ready) < len(commits):
            return False
        landed: bool | None
        try:
            landed = await consensus.compare_and_set_all(
                [
                    Attempt(log.collection, plan.known.seen, plan.version)
                    for (log, _), plan in zip(commits, ready, strict=True)
                ]
            )
        except Unavailable:
            landed = False
        except Indeterminate:
            landed = None
        for (log, _), plan in zip(commits, ready, strict=True):
            log.settle(plan, landed)
        return landed is True
