"""What a view does while nothing waits for it, and lets lie as soon as something does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Condition
from typing import TypeVar

from tidemill.datalog.incremental import Pause

Found = TypeVar("Found")


class Interrupted(Exception):
    """A change has come: nobody waits any more for what was being made. Known to `Idling` alone."""


class Quiet:
    """How many views of a process are at work; one thing at a time is made while none is."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self._changed = Condition()
        self._working = 0

    @contextmanager
    def disturbed(self) -> Iterator[None]:
        """A view is at work."""
        with self._changed:
            self._working += 1
        try:
            yield
        finally:
            with self._changed:
                self._working -= 1
                self._changed.notify_all()

    def wait(self, until: Callable[[], bool]) -> None:
        """Let the thread wait while any view is at work, unless something else is so; look again
        after `tell`.
        """
        if self._working and not until():
            with self._changed:
                self._changed.wait_for(lambda: until() or not self._working)

    def tell(self) -> None:
        """Something that threads wait for may be so."""
        with self._changed:
            self._changed.notify_all()


class Idling:
    """One thing that is made in a thread of its own, part by part; between two of them it gives
    way.

    It waits while any view of the process is at work, and ends once it is stopped. Whoever stops it
    need not wait.
    """

    def __init__(self, quiet: Quiet) -> None:
        self._quiet = quiet
        self._stopped = False

    async def run(self, make: Callable[[Pause], Found]) -> Found | None:
        """What `make` gives, who calls what it is given between two parts; None if it was stopped
        before.
        """
        async with self._quiet.turn:
            return await asyncio.to_thread(self._made, make)

    def _made(self, make: Callable[[Pause], Found]) -> Found | None:
        try:
            self._pause()
            return make(self._pause)
        except Interrupted:
            return None

    def stop(self) -> None:
        """Let it end at the next part."""
        self._stopped = True
        self._quiet.tell()

    def _pause(self) -> None:
        """Wait while any view is at work. Raises: Interrupted."""
        self._quiet.wait(lambda: self._stopped)
        if self._stopped:
            raise Interrupted
