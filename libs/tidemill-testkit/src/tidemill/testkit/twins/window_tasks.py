"""Twin of the tasks of a window: its ranges in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator

from tidemill_compute.views.range_wire import LAST, Dealt
from tidemill_compute.views.windows.work import WindowWork


async def evaluate_here(packed: bytes, work: WindowWork) -> AsyncIterator[Dealt]:
    """All ranges of a window in this process, one after the other: the twin of its tasks."""
    waiting: list[Dealt] = []
    inputs = work.window.parts if work.window.fresh else {}
    for fragment in work.fragments:
        for name in work.divided.collections_of(fragment):
            for at in range(len(inputs.get(name, ()))):
                waiting += [each async for each in work.deal(fragment.number, name, at)]
        mine = [each for each in waiting if each.stage == fragment.number]
        async for dealt in work.stage(fragment.number, 0, 1, mine):
            if dealt.stage == LAST:
                yield dealt
            else:
                waiting.append(dealt)
