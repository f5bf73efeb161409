"""Ending work that may forget that it was cancelled."""

from __future__ import annotations

import asyncio
from typing import Any

from tidemill.shard.ports import Clock

CANCEL_AGAIN_S = 2.0
"""Seconds after which a cancelled task that has not ended is cancelled once more."""


async def end_task(task: asyncio.Task[Any], clock: Clock) -> None:
    """Cancel a task until it has ended, also when this is cancelled meanwhile; how it ended is not
    told.

    Libraries wait by `asyncio.wait_for`, which before Python 3.12 forgets a cancellation that comes
    at the moment at which it ends. When a process that stood still goes on, that is likely: what
    should have been over went on for ever. Raises: CancelledError, once the task has ended, if this
    was cancelled.
    """
    interrupted = False
    while not task.done():
        task.cancel()
        pause = asyncio.ensure_future(clock.sleep(CANCEL_AGAIN_S))
        while not task.done() and not pause.done():
            try:
                await asyncio.wait((task, pause), return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                # A caller that waits here begins its next work then: not while the task is clearing
                # up.
                interrupted = True
        pause.cancel()
    if not task.cancelled():
        task.exception()
    if interrupted:
        raise asyncio.CancelledError
