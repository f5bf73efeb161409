"""Strangers: connections of a port whose caller has not said who it is, few and not for long.

gRPC counts connections and hands none of them out. Their sockets are descriptors of this process:
a look at these tells which connections are open, and ends one without asking gRPC. A connection is
known from the first call on that was admitted.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from stat import S_ISSOCK
from urllib.parse import unquote

LOOK_S, CROWDED_LOOK_S = 1.0, 0.1
"""Seconds between two looks at the connections, and while more strangers come than may stay."""

LOOK_SHARE = 0.05
"""Largest part of the time that looks take: the interpreter is needed for calls."""

_DESCRIPTORS = Path("/proc/self/fd" if Path("/proc/self/fd").is_dir() else "/dev/fd")

Place = tuple[str, int]
"""Address and port of the other end of a connection."""


@dataclass(slots=True)
class Strangers:
    """Decides which connections end: those that have been strange for too long, or are too many."""

    count_max: int
    seconds_max: float
    now_s: Callable[[], float]
    _since_s: dict[Place, float] = field(default_factory=dict)
    _known_s: dict[Place, float] = field(default_factory=dict)

    def know(self, peer: str) -> None:
        """A call of this peer was admitted; `peer` is as gRPC states it."""
        place = _place_of(peer)
        if place is not None:
            self._known_s[place] = self.now_s()

    def due(self, places: Iterable[Place], looked_s: float) -> list[Place]:
        """The connections to end, the oldest strangers first, of those open at `looked_s`."""
        now_s, open_now = self.now_s(), set(places)
        # A connection that became known after the look may not have been seen by it.
        self._known_s = {
            place: at_s
            for place, at_s in self._known_s.items()
            if place in open_now or at_s >= looked_s
        }
        strange = open_now - self._known_s.keys()
        self._since_s = {place: self._since_s.get(place, looked_s) for place in strange}
        ordered = sorted(strange, key=lambda place: self._since_s[place])
        beyond = len(ordered) - self.count_max
        return [
            place
            for rank, place in enumerate(ordered)
            if rank < beyond or now_s - self._since_s[place] >= self.seconds_max
        ]

    async def end_forever(
        self,
        port: int,
        sleep: Callable[[float], Awaitable[None]],
        refused: Callable[[str], None],
    ) -> None:
        """End connections of `port` that are due, until cancelled.

        `refused` hears of each, by the name of the setting.
        """
        while True:
            looked_s = self.now_s()
            places = await asyncio.to_thread(lambda: list(_connections(port)))
            took_s = self.now_s() - looked_s
            due = self.due(places, looked_s)
            if due:
                await asyncio.to_thread(_end, port, frozenset(due))
            for _ in due:
                refused("limits.strangers")
            pause_s = CROWDED_LOOK_S if len(self._since_s) > self.count_max else LOOK_S
            await sleep(max(pause_s, took_s / LOOK_SHARE))


def _place_of(peer: str) -> Place | None:
    """The place that a peer such as `ipv4:127.0.0.1:50051` names; None for other kinds."""
    kind, _, rest = peer.partition(":")
    host, _, port = unquote(rest).rpartition(":")
    if kind not in ("ipv4", "ipv6") or not port.isdecimal():
        return None
    return _place(host.strip("[]"), int(port))


def _place(host: str, port: int) -> Place:
    address = ip_address(host.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address), port


def _connections(port: int) -> Iterator[Place]:
    """The other ends of all connections to a port of this process."""
    for descriptor in _descriptors():
        with _connected(descriptor, port) as found:
            if found is not None:
                yield found[1]


def _end(port: int, places: frozenset[Place]) -> None:
    """End the connections to a port from these places."""
    for descriptor in _descriptors():
        with _connected(descriptor, port) as found:
            if found is not None and found[1] in places:
                with suppress(OSError):  # it has ended by itself
                    found[0].shutdown(socket.SHUT_RDWR)


def _descriptors() -> list[int]:
    return [int(name) for name in os.listdir(_DESCRIPTORS) if name.isdecimal()]


def _copy_of_socket(descriptor: int) -> int | None:
    """A copy of a descriptor that is a socket, None for all others.

    IMPORTANT: a copy of a file is never closed. Its end would release every lock that this process
    has on the file, and an open database would lose what it writes from then on. A file that took
    the place of a socket in this very moment keeps its copy.
    """
    try:
        if not S_ISSOCK(os.fstat(descriptor).st_mode):
            return None
        copy = os.dup(descriptor)
        return copy if S_ISSOCK(os.fstat(copy).st_mode) else None
    except OSError:  # closed by now
        return None


@contextmanager
def _connected(descriptor: int, port: int) -> Iterator[tuple[socket.socket, Place] | None]:
    """The connection to a port that a descriptor is, with its other end; None for all others.

    It is looked at through a copy: the descriptor may be closed and given out again meanwhile.
    """
    copy = _copy_of_socket(descriptor)
    if copy is None:
        yield None
        return
    held = socket.socket(fileno=copy)
    with held:
        found = None
        with suppress(OSError):  # it listens, or has ended
            if held.family in (socket.AF_INET, socket.AF_INET6) and held.getsockname()[1] == port:
                found = held, _place(*held.getpeername()[:2])
        yield found
