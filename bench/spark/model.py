"""The seconds that a history takes on some executors, from parts of its work that were measured.

Work is in seconds of one core, and divides among executors. Set-up is in seconds of a clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapreplace

DIVIDED = "work to divide"
"""The name of what holds a history up while more executors would help."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """Costs of Spark: a job, the start of a task, a byte that is handed on.

    A job takes `job_s` of a clock and `job_cpu_s` of processors beside the work of its tasks. Its
    plan, its stages and their exchanges do not depend on executors. `empty_s` are of a range
    without rows, and `commit_s` of appending what a job wrote.
    """

    job_s: float
    job_cpu_s: float
    task_s: float
    byte_s: float
    empty_s: float
    commit_s: float


@dataclass(frozen=True, slots=True)
class Stage:
    """A fragment: `reading` of each part of its inputs, `work` of each range, `bytes` it is given.

    There are as many ranges as were measured, a power of two.
    """

    reading: tuple[float, ...]
    work: tuple[float, ...]
    bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Predicted:
    """Seconds on some executors, those of processors, and what holds them up."""

    executors: int
    ranges: int
    wall_s: float
    processor_s: float
    bottleneck: str


def predict(stages: Sequence[Stage], fixed: Fixed, executors: int, ranges: int) -> Predicted:
    """A history on executors of one core, with so many ranges. Pure. Cost: O(ranges · stages)."""
    setup = fixed.job_s + fixed.commit_s
    wall, work, longest = setup, 0.0, {"the largest part": 0.0, "the heaviest range": 0.0}
    for stage in stages:
        reading = [fixed.task_s + each for each in stage.reading]
        tasks = [fixed.task_s + each for each in _ranges(stage, fixed, ranges)]
        for name, each in zip(longest, (reading, tasks), strict=True):
            wall += makespan(each, executors)
            work += sum(each)
            longest[name] += max(each, default=0.0)
    shares = {DIVIDED: work / executors, "set-up": setup, **longest}
    processor = fixed.job_cpu_s + work
    return Predicted(executors, ranges, wall, processor, max(shares, key=lambda name: shares[name]))


def makespan(tasks: Sequence[float], executors: int) -> float:
    """Seconds until all tasks are done, each begun by the first executor that has none."""
    free = [0.0] * executors
    for each in tasks:
        heapreplace(free, free[0] + each)
    return max(free)


def _ranges(stage: Stage, fixed: Fixed, ranges: int) -> list[float]:
    """The seconds of each of fewer ranges: stretches of those that were measured."""
    size, rest = divmod(len(stage.work), ranges)
    assert not rest, "ranges are powers of two, and no more than were measured"
    return [
        sum(stage.work[at : at + size])
        - (size - 1) * fixed.empty_s
        + fixed.byte_s * sum(stage.bytes[at : at + size])
        for at in range(0, len(stage.work), size)
    ]
