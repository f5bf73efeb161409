"""The run's share of the machine: processors taken by other processes are no fault of the system.

A recovery is given seconds of the machine. On a machine without other users these are seconds. If
others take half of the processors for a while, that while counts half. The run's own work, its
servers and its checks, always counts.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from tidemill.runtime.clock import Clock

IDLE = (3, 4)
"""Columns of the line `cpu` of /proc/stat that are no work: idle, waiting for a disk."""
WINDOW_S = 10.0


class Used(NamedTuple):
    """Ticks of the processors since the machine began: that there were, that work took, that ours
    took.
    """

    at_s: float
    all: int
    busy: int
    ours: int


def share_of_ours(before: Used, after: Used) -> float:
    """Which part of the machine was not others' between two looks."""
    passed = after.all - before.all
    others = (after.busy - before.busy) - (after.ours - before.ours)
    return 1.0 if passed <= 0 else min(1.0, max(0.0, 1.0 - others / passed))


class Machine:
    """Looks at the processors that processes use.

    Ours are those below this one, and those whose command names `marks`. The use of a process that
    ended between two looks counts as others', if at all.
    """

    def __init__(self, clock: Clock, marks: Iterable[str]) -> None:
        self._clock = clock
        self._marks = tuple(mark.encode() for mark in marks)
        self._of: dict[int, int] = {}
        self._ours = 0
        self.had_s = 0.0
        """Seconds of the machine that were ours since the first look."""
        self._looks: deque[Used] = deque()
        self.look()

    @property
    def share(self) -> float:
        """Which part of the machine was ours in the last seconds."""
        return share_of_ours(self._looks[0], self._looks[-1])

    def look(self) -> None:
        """Count what was used since the last look. Cost: reads a few files of each process."""
        now = self._used()
        if self._looks:
            before = self._looks[-1]
            self.had_s += (now.at_s - before.at_s) * share_of_ours(before, now)
        self._looks.append(now)
        while len(self._looks) > 2 and now.at_s - self._looks[1].at_s > WINDOW_S:
            self._looks.popleft()

    def _used(self) -> Used:
        cells = [
            int(cell) for cell in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
        ]
        idle = sum(cells[at] for at in IDLE)
        parents, ticks = _processes()
        now = {pid: used for pid, used in ticks.items() if self._is_ours(pid, parents)}
        # Of a process that is new all counts, of one that was there what came since.
        self._ours += sum(max(0, used - self._of.get(pid, 0)) for pid, used in now.items())
        self._of = now
        return Used(self._clock.monotonic_s(), sum(cells), sum(cells) - idle, self._ours)

    def _is_ours(self, pid: int, parents: Mapping[int, int]) -> bool:
        above = pid
        while above > 1:
            if above == os.getpid():
                return True
            above = parents.get(above, 0)
        try:
            command = Path("/proc", str(pid), "cmdline").read_bytes()
        except OSError:
            return False
        return any(mark in command for mark in self._marks)


class Patience:
    """Waits for something for as long as it comes nearer, in seconds of the machine.

    It ends once nothing has come nearer for `seconds` of the machine, or at ten times as much by
    the clock.
    """

    def __init__(self, machine: Machine, clock: Clock, seconds: float) -> None:
        self._machine = machine
        self._clock = clock
        self._seconds = seconds
        self._end_s = clock.monotonic_s() + 10 * seconds
        self._seen: object = None
        machine.look()
        self._since_s = machine.had_s

    def lasts(self, seen: object) -> bool:
        """Whether to wait on, where `seen` tells how near it has come."""
        self._machine.look()
        if seen != self._seen:
            self._seen, self._since_s = seen, self._machine.had_s
        waited_s = self._machine.had_s - self._since_s
        return waited_s <= self._seconds and self._clock.monotonic_s() < self._end_s


def _processes() -> tuple[dict[int, int], dict[int, int]]:
    """The parent of each process, and the ticks that it has used, what it has started and buried
    left out.
    """
    parents, ticks = {}, {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            stat = Path("/proc", name, "stat").read_text()
        except OSError:
            continue
        # The name of a command may hold anything, spaces and brackets too.
        cells = stat.rpartition(")")[2].split()
        parents[int(name)] = int(cells[1])
        ticks[int(name)] = int(cells[11]) + int(cells[12])
    return parents, ticks
