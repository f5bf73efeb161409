"""Progress of a stream's event time: a pure fold over system instants.

At a system instant each partition has promised that nothing before (its largest time seen − skew)
will follow. The stream's event frontier is the least promise over the partitions that count; it
never goes back. A partition that has been silent for the idle timeout does not count; if none
counts, the greatest promise does. The frontier at an instant is a function of all arrivals up to
that instant, never of the cut into steps.

When nothing comes from any partition, only a decision about the silence moves the frontier. It is
written to the map at its instant, and a repeated fold of the interval reads it there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

STREAM = -1
"""The row of the stream itself in the event map; partitions count from 0."""
DECIDED = -2
"""The row of the last decision about a silence: where it brought the frontier, and when."""


@dataclass(frozen=True, slots=True)
class Promise:
    """Promise of one partition: `frontier` is None until it has sent anything."""

    frontier: int | None
    heard: int


@dataclass(frozen=True, slots=True)
class EventProgress:
    """The event frontier of a stream at one system instant, and the promises it follows from.

    `moved` is the first system instant at which the stream's frontier stood where it stands.
    """

    promises: Mapping[int, Promise]
    frontier: int = 0
    moved: int = 0
    decided: Promise | None = None

    @property
    def heard(self) -> int | None:
        """The last instant at which any partition spoke; None before there is one."""
        return max((promise.heard for promise in self.promises.values()), default=None)

    def rows(self) -> list[tuple[int, int | None, int]]:
        """The content of the event map at this instant: (partition, frontier, instant)."""
        partitions = [
            (partition, promise.frontier, promise.heard)
            for partition, promise in sorted(self.promises.items())
        ]
        stream: list[tuple[int, int | None, int]] = [(STREAM, self.frontier, self.moved)]
        if self.decided is not None:
            stream.insert(0, (DECIDED, self.decided.frontier, self.decided.heard))
        return stream + partitions


NOTHING_SEEN = EventProgress({})


@dataclass(frozen=True, slots=True)
class Policy:
    """When a partition counts and how far events may be behind; all in milliseconds."""

    skew_ms: int = 0
    idle_timeout_ms: int | None = None
    silence_ms: int | None = None

    @property
    def follows_rows_alone(self) -> bool:
        """Whether nothing but a row moves the frontier, however long nothing comes."""
        return self.idle_timeout_ms is None and self.silence_ms is None


def progress_of(rows: list[tuple[int, int | None, int]]) -> EventProgress:
    """The progress whose event map holds exactly `rows`; the inverse of `EventProgress.rows`."""
    promises = {
        partition: Promise(frontier, instant)
        for partition, frontier, instant in rows
        if partition >= 0
    }
    own = {partition: (f, instant) for partition, f, instant in rows if partition < 0}
    frontier, moved = own.get(STREAM, (0, 0))
    decided = Promise(*own[DECIDED]) if DECIDED in own else None
    return EventProgress(promises, frontier or 0, moved, decided)


def decided_at(progress: EventProgress, instant: int, reached: int) -> EventProgress:
    """The progress at `instant` after the decision that the silence brings the frontier to
    `reached`.
    """
    if reached <= progress.frontier:
        return progress
    decided = Promise(reached, instant)
    return replace(progress, frontier=reached, moved=instant, decided=decided)


def idle_steps(
    progress: EventProgress, until: int, policy: Policy
) -> list[tuple[int, EventProgress]]:
    """The instants before `until` at which silence alone moves the frontier, with the progress
    then.

    A partition stops counting at the instant at which its silence reaches the idle timeout.
    """
    if policy.idle_timeout_ms is None:
        return []
    steps = []
    deadlines = sorted({p.heard + policy.idle_timeout_ms for p in progress.promises.values()})
    for deadline in deadlines:
        settled = _settle(progress, deadline, policy) if deadline < until else progress
        if settled is not progress:
            steps.append((deadline, settled))
            progress = settled
    return steps


def observe(
    progress: EventProgress,
    instant: int,
    latest: Mapping[int, int],
    heartbeats: Mapping[int, int],
    partitions: int,
    policy: Policy,
) -> EventProgress:
    """The progress at `instant` after everything that arrived at it.

    `latest` is the largest event time that arrived per partition. `heartbeats` are the greatest
    promises sent as such. `partitions` is the number of known partitions of the source.
    """
    promises = dict(progress.promises)
    for partition in range(partitions):
        promises.setdefault(partition, Promise(None, instant))
    promised = {p: time - policy.skew_ms for p, time in latest.items()}
    for partition, time in heartbeats.items():
        promised[partition] = max(time, promised.get(partition, time))
    for partition, time in promised.items():
        before = promises.get(partition, Promise(None, instant)).frontier
        kept = max(time, 0) if before is None else max(time, before)
        promises[partition] = Promise(kept, instant)
    return _settle(replace(progress, promises=promises), instant, policy)


def _settle(progress: EventProgress, instant: int, policy: Policy) -> EventProgress:
    """Move the stream's frontier to what the promises allow at `instant`."""
    promises = progress.promises.values()
    timeout = policy.idle_timeout_ms
    counting = [p for p in promises if timeout is None or instant - p.heard < timeout]
    if counting:
        spoken = [p.frontier for p in counting]
        allowed = 0 if None in spoken else min(f for f in spoken if f is not None)
    else:
        allowed = max((p.frontier or 0 for p in promises), default=0)
    if allowed <= progress.frontier:
        return progress
    return replace(progress, frontier=allowed, moved=instant)
