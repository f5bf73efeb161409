"""Group commit: appends that wait at the same time become one write.

Both logs use it: one fsync, or one round trip to a broker, serves everybody who waits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from tidemill.arrangement.looks import FOR_OTHERS, with_looks
from tidemill.errors import Indeterminate, TidemillError
from tidemill.runtime.log import Entry
from tidemill.shard.offloading import OBJECT_ROWS, compute_beside

Place: TypeAlias = tuple[str, int]
"""(topic, partition)."""

Outcome: TypeAlias = Sequence[int] | TidemillError
"""The offset of each entry of a run, or why there is none."""

Answer: TypeAlias = list[tuple[int, int]] | TidemillError
"""(partition, offset) of each entry of one append, or why there is none."""

WriteRuns = Callable[[Mapping[Place, list[Entry]]], Awaitable[Mapping[Place, Outcome]]]
"""Write one run of entries for each place, each in order; raises TidemillError if nothing was
written.
"""


@dataclass(slots=True)
class _Append:
    """One call that waits for the next write."""

    topic: str
    entries: Sequence[Entry]
    partitions: Sequence[int]
    done: asyncio.Future[list[tuple[int, int]]]


class GroupCommit:
    """Collects appends and writes them in order, one group at a time."""

    def __init__(self, write: WriteRuns) -> None:
        self._write = write
        self._waiting: deque[_Append] = deque()
        self._writing: asyncio.Task[None] | None = None

    async def append(
        self, topic: str, entries: Sequence[Entry], partitions: Sequence[int]
    ) -> list[tuple[int, int]]:
        """Append `entries` to `partitions`, one for each; (partition, offset) of each in order.

        Raises: what the write raised; Indeterminate if only a part of the entries was refused.
        """
        if not entries:
            return []
        done: asyncio.Future[list[tuple[int, int]]] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Append(topic, entries, partitions, done))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write_groups())
        return await done

    async def drain(self) -> None:
        """Return when everything that was asked for is written or refused."""
        if self._writing is not None:
            await asyncio.wait([self._writing])

    async def _write_groups(self) -> None:
        FOR_OTHERS.set(True)  # whoever was the first to append has begun this task
        while self._waiting:
            group = list(self._waiting)
            self._waiting.clear()
            size = OBJECT_ROWS * sum(len(append.entries) for append in group)
            try:
                outcomes = await self._write(await compute_beside(size, partial(_runs, group)))
                answers = await compute_beside(size, partial(_answers, group, outcomes))
            except TidemillError as error:
                answers = [_joint_error([error], partly=False) for _ in group]
            except BaseException:
                _answer(group, [Indeterminate("append was interrupted") for _ in group])
                raise
            _answer(group, answers)


def _runs(group: Sequence[_Append]) -> dict[Place, list[Entry]]:
    """The entries of all appends, in their order, by where they go."""
    runs: dict[Place, list[Entry]] = {}
    for append in group:
        both = zip(append.partitions, append.entries, strict=True)
        for partition, entry in with_looks(both):
            runs.setdefault((append.topic, partition), []).append(entry)
    return runs


def _answers(group: Sequence[_Append], outcomes: Mapping[Place, Outcome]) -> list[Answer]:
    """For every append of the group the offsets of its entries, or its error."""
    taken = dict.fromkeys(outcomes, 0)
    answers: list[Answer] = []
    for append in group:
        places: list[tuple[int, int]] = []
        errors: list[TidemillError] = []
        for partition in with_looks(append.partitions):
            place = append.topic, partition
            outcome = outcomes[place]
            if isinstance(outcome, TidemillError):
                errors.append(outcome)
            else:
                places.append((partition, outcome[taken[place]]))
                taken[place] += 1
        answers.append(_joint_error(errors, partly=bool(places)) if errors else places)
    return answers


def _answer(group: Sequence[_Append], answers: Sequence[Answer]) -> None:
    """Tell whoever still waits."""
    for append, answer in zip(group, answers, strict=True):
        if append.done.done():
            continue
        if isinstance(answer, TidemillError):
            append.done.set_exception(answer)
        else:
            append.done.set_result(answer)


def _joint_error(errors: list[TidemillError], *, partly: bool) -> TidemillError:
    """The error of one append from those of its entries.

    The entries' common class, if none was written; else Indeterminate.
    """
    first = errors[0]
    if not partly and all(type(error) is type(first) for error in errors):
        return type(first)(first.message, **first.details)
    return Indeterminate(f"append may have succeeded in part: {first}", **first.details)
