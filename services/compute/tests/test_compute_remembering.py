"""Events that get old: keys are forgotten, and no event fires twice."""

from __future__ import annotations

from random import Random

import pytest

from tidemill.datalog.goals import goal_over
from tidemill.datalog.records import Record
from tidemill_compute.actions.corrections import Correction
from tidemill_compute.actions.firings import Firings, RecordChange
from tidemill_compute.actions.outbox import Firing

GOAL = goal_over("hot(oven)", {"hot": (("oven", "int"),)}, "calls")
REMEMBER = 10


def changes(random: Random, end: int) -> list[RecordChange]:
    """Events that come, go and come back, some long after their time; some are of the future."""
    found: list[RecordChange] = []
    for number in range(end):
        record = Record("hot", (number % 3,), number)
        far = number + random.choice((8, 60))
        at = sorted(random.sample(range(number, far), random.randrange(1, 5)))
        found += [(record, instant, 1 - 2 * (place % 2)) for place, instant in enumerate(at)]
    return sorted(found, key=lambda each: (each[1], each[0].time, each[0].arguments))


def obvious(moves: list[RecordChange]) -> list[tuple[int, Record]]:
    """Firings: the first beginning of each event, if that is not too long after its time."""
    fired: dict[Record, int] = {}
    for record, instant, diff in moves:
        assert record.time is not None
        if diff > 0 and instant - record.time <= REMEMBER:
            fired.setdefault(record, instant)
    return sorted(((at, record) for record, at in fired.items()), key=str)


def taken(
    moves: list[RecordChange], memory: Firings, random: Random
) -> tuple[list[Firing], list[Correction]]:
    """All that follows from changes that come in some steps."""
    firings: list[Firing] = []
    corrections: list[Correction] = []
    cuts = [0]
    while cuts[-1] < len(moves):
        stop = min(len(moves), cuts[-1] + random.randrange(1, 40))
        while stop < len(moves) and moves[stop][1] == moves[stop - 1][1]:
            stop += 1
        told, corrected = memory.take(moves[cuts[-1] : stop])
        firings, corrections = firings + told, corrections + corrected
        cuts.append(stop)
    return firings, corrections


@pytest.mark.parametrize("seed", range(8))
def test_an_event_fires_once_however_often_its_key_was_forgotten(seed: int) -> None:
    """By any cut into steps: what is forgotten when does not tell."""
    random = Random(seed)
    moves = changes(random, 400)
    memory, whole = (Firings(GOAL, False, remember_ms=REMEMBER) for _ in range(2))
    firings, corrections = taken(moves, memory, random)
    at_once, corrected_at_once = whole.take(moves)
    assert firings == at_once
    assert corrections == corrected_at_once
    of = {memory.key_of(record): record for record, _, _ in moves}
    found = sorted(((each.instant, of[each.key]) for each in firings), key=str)
    assert found == obvious(moves)
    assert len({each.key for each in firings}) == len(firings)
    assert memory.outdated == whole.outdated > 20
    assert memory.repeated == whole.repeated > 20


def test_a_memory_that_forgets_is_as_large_as_what_may_begin_again() -> None:
    memory, forever = Firings(GOAL, False, remember_ms=REMEMBER), Firings(GOAL, False)
    greatest = 0
    for time in range(5_000):
        change: list[RecordChange] = [(Record("hot", (n,), time), time, 1) for n in range(3)]
        assert len(memory.take(change)[0]) == len(forever.take(change)[0]) == 3
        greatest = max(greatest, len(memory.known))
    assert len(forever.known) == 15_000  # the companion: it forgets nothing
    assert greatest <= 3 * 3 * (REMEMBER + 1)
