"""Twin of the tasks of a window: its ranges in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from tidemill_compute.views.range_wire import LAST, Dealt
from tidemill_compute.views.windows.rounds import (
    RoundTold,
    RoundWork,
    Sources,
    exchanged_row,
    failed_row,
    iterate,
)
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
        if fragment.returning:
            async for dealt in rounds_here(work, fragment.number, mine):
                if dealt.stage == LAST:
                    yield dealt
                else:
                    waiting.append(dealt)
            continue
        async for dealt in work.stage(fragment.number, 0, 1, mine):
            if dealt.stage == LAST:
                yield dealt
            else:
                waiting.append(dealt)


GROUPS = 2
"""Tasks of a round."""


async def rounds_here(work: WindowWork, number: int, rows: Sequence[Dealt]) -> AsyncIterator[Dealt]:
    """A fragment by rounds in this process, whose ranges were dealt some rows."""
    rounds = RoundWork(work, number, GROUPS)

    async def evaluate(sources: Sources) -> Sequence[RoundTold]:
        return [await rounds.take(group, sources) for group in range(GROUPS)]

    mine = [[each for each in rows if each.range % GROUPS == group] for group in range(GROUPS)]
    begun = [await rounds.begin(group, each) for group, each in enumerate(mine)]
    if not work.reaches(work.fragments[number], dealt=bool(rows)):
        return
    found = await iterate(work, begun, evaluate)
    if found.failed is not None:
        yield failed_row(found.failed)
        return
    yield exchanged_row(found.sources)
    for group in range(GROUPS):
        async for dealt in rounds.tell(group, found.sources):
            yield dealt
