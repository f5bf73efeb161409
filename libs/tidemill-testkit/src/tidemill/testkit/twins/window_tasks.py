"""Twin of the tasks of a window: its ranges in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import partial

from tidemill_compute.views.range_wire import LAST, Dealt
from tidemill_compute.views.windows.rounds import (
    RoundTold,
    RoundWork,
    Sources,
    ask_all,
    exchanged_row,
    failed_row,
    iterate,
    read_sent,
)
from tidemill_compute.views.windows.work import WindowWork


async def evaluate_here(packed: bytes, work: WindowWork) -> AsyncIterator[Dealt]:
    """All ranges of a window in this process, one after the other: the twin of its tasks."""
    waiting: list[Dealt] = []
    for fragment in work.fragments:
        if not fragment.returning:
            for at in range(len(work.inputs_of(fragment))):
                waiting += [each async for each in work.deal(fragment.number, at)]
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

    async def take(sources: Sources, wanted: Sequence[int]) -> list[RoundTold]:
        taken = len(sources) - 1
        return [await rounds.take(rounds.chosen(g, wanted, taken), sources) for g in wanted]

    async def evaluate(sources: Sources) -> Sequence[RoundTold]:
        return await ask_all(GROUPS, partial(take, sources))

    async def answer(sources: Sources, wanted: Sequence[int]) -> list[RoundTold]:
        taken = len(sources)
        return [await rounds.answer(rounds.chosen(g, wanted, taken), sources) for g in wanted]

    mine = [[each for each in rows if each.range % GROUPS == group] for group in range(GROUPS)]
    fragment = work.fragments[number]
    begun = [await rounds.deal(at) for at in range(len(work.inputs_of(fragment)))]
    begun += [await rounds.begin(group, each) for group, each in enumerate(mine)]
    if not work.reaches(fragment, dealt=any(each.sent for each in begun)):
        return
    found = await iterate(work, begun, evaluate)
    if found.failed is not None:
        yield failed_row(found.failed)
        return
    yield exchanged_row(found.sources)
    for told in await ask_all(GROUPS, partial(answer, found.sources)):
        for row in told.rows:
            yield row
        for sent in told.sent:
            for row in await read_sent(work.blob, sent.key):
                yield row
