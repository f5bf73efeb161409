"""Event streams as they arrive: which events count, from when on, and how far the answers are
definite.

An event is in time if its time is not below the stream's frontier when it arrives. The frontier of
a partition is (largest time seen) - skew or its last heartbeat, that of the stream the least of its
partitions; it never goes back (language.md 4.5, 4.6).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from tidemill.datalog.presence import BEGINNING, END, Instant, Presence
from tidemill.datalog.records import Record

LatePolicy: TypeAlias = Literal["reject", "correct"]


@dataclass(frozen=True, slots=True)
class ArrivalPolicy:
    """What a stream promises and what happens to events that break it.

    Units: milliseconds. `max_ahead` bounds how far a time may lie ahead of the wall clock.
    """

    skew: int = 0
    late: LatePolicy = "reject"
    max_ahead: int | None = None


@dataclass(frozen=True, slots=True)
class Admitted:
    """The event is in time and present from its own time on."""

    start: Instant


@dataclass(frozen=True, slots=True)
class Late:
    """The event goes to the dead letters; under `correct` it is also present from `start` on."""

    start: Instant | None
    frontier: Instant


@dataclass(frozen=True, slots=True)
class Ahead:
    """The event goes to the dead letters and moves no frontier: its time is too far in the future."""

    wall: int


Verdict: TypeAlias = "Admitted | Late | Ahead"


@dataclass(frozen=True, slots=True)
class ArrivalState:
    """Where a stream stands: the frontier of each partition, which are idle, the frontier of the
    stream.
    """

    partitions: Mapping[int, Instant]
    idle: frozenset[int] = field(default_factory=frozenset)
    frontier: Instant = BEGINNING


class EventStream:
    """Admits the events of one stream in their order of arrival.

    Deterministic: the verdicts are a function of the state and of what arrives. A stream that
    shares its frontier with others, as in a view over several, is one `EventStream` for all of
    them.
    """

    def __init__(self, policy: ArrivalPolicy, state: ArrivalState) -> None:
        self._policy = policy
        self._partitions = dict(state.partitions)
        self._idle = set(state.idle)
        self._frontier = state.frontier

    @classmethod
    def of_partitions(cls, policy: ArrivalPolicy, partitions: Iterable[int] = (0,)) -> EventStream:
        """A stream of which nothing has arrived yet."""
        return cls(policy, ArrivalState(dict.fromkeys(partitions, BEGINNING)))

    @property
    def frontier(self) -> Instant:
        """No event in time below this instant will come; `-inf` until every partition has spoken."""
        return self._frontier

    @property
    def state(self) -> ArrivalState:
        """Where the stream stands; a new `EventStream` on it goes on exactly here."""
        return ArrivalState(dict(self._partitions), frozenset(self._idle), self._frontier)

    def admit(self, time: int, partition: int = 0, wall: int | None = None) -> Verdict:
        """Judge an event that arrives now and move the frontier.

        `wall` is the wall clock at its arrival.
        """
        ahead = self._policy.max_ahead
        if ahead is not None and wall is not None and time > wall + ahead:
            return Ahead(wall)
        before = self._frontier
        self._reach(partition, time - self._policy.skew)
        if time >= before:
            return Admitted(time)
        return Late(before if self._policy.late == "correct" else None, before)

    def heartbeat(self, time: int, partition: int = 0) -> None:
        """The partition promises that nothing before `time` will follow."""
        self._reach(partition, time)

    def silence(self, partition: int) -> None:
        """The partition has been silent for the idle timeout: it holds the frontier back no longer."""
        self._idle.add(partition)
        self._advance()

    def _reach(self, partition: int, frontier: int) -> None:
        self._idle.discard(partition)
        self._partitions[partition] = max(self._partitions.get(partition, BEGINNING), frontier)
        self._advance()

    def _advance(self) -> None:
        speaking = [f for p, f in self._partitions.items() if p not in self._idle]
        if speaking:
            self._frontier = max(self._frontier, min(speaking))


def event_presence(record: Record, start: Instant) -> Presence | None:
    """The stretch of an event that was admitted from `start` on, None if it has expired by then."""
    end = END if record.expires is None else record.expires
    return Presence(record, start, end) if start < end else None
