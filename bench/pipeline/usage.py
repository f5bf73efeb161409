"""Processor and memory of processes, with all that they started, read from outside."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from types import TracebackType
from typing import Self

TICKS = os.sysconf("SC_CLK_TCK")
EACH_S = 0.2


class Usage:
    """Seconds of the processor and the peak of resident memory, looked at five times a second.

    `roots` tells the processes; each counts with its descendants, those that have ended included.
    """

    def __init__(self, roots: Callable[[], list[int]]) -> None:
        self.processor_s = 0.0
        self.peak_mb = 0.0
        self.looks: list[float] = []
        """Resident memory at each look, in MB."""
        self._roots = roots
        self._before = 0.0
        self._told = 0
        self._ended = Event()
        self._thread = Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._before, _ = measured(self._roots())
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()
        self._look()

    def peak_since(self) -> float:
        """The greatest memory, in MB, since this was asked last; the last known, if none is new."""
        told, self._told = self._told, max(len(self.looks), 1)
        return max(self.looks[max(told - 1, 0) :], default=0.0)

    def _watch(self) -> None:
        while not self._ended.wait(EACH_S):
            self._look()

    def _look(self) -> None:
        seconds, megabytes = measured(self._roots())
        self.processor_s = max(self.processor_s, seconds - self._before)
        self.peak_mb = max(self.peak_mb, megabytes)
        self.looks.append(megabytes)


def measured(roots: list[int]) -> tuple[float, float]:
    """Seconds of the processor, and resident MB, of processes and their descendants."""
    ticks: dict[int, int] = {}
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue  # it has ended
            parents[int(entry.name)] = int(fields[1])
            ticks[int(entry.name)] = sum(map(int, fields[11:15]))
    ours, grown = set(roots), True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in ours} - ours
        ours, grown = ours | more, bool(more)
    return sum(ticks.get(pid, 0) for pid in ours) / TICKS, sum(map(resident_mb, ours))


def resident_mb(pid: int) -> float:
    """Resident memory of a process; 0 if it has ended."""
    try:
        found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0.0
    return int(found[1]) / 1024 if found else 0.0
