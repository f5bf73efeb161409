"""Background work of a view while nothing waits for it, abandoned as soon as something does."""

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
    """Condition variable on the working views of a process; one task is made while none works."""

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
        """Block the thread while any view works and `until` is false; see `tell`."""
        if self._working and not until():
            with self._changed:
                self._changed.wait_for(lambda: until() or not self._working)

    def tell(self) -> None:
        """Something that threads wait for may be so."""
        with self._changed:
            self._changed.notify_all()


class Idling:
    """One background task in a thread of its own, part by part; between two parts it gives way.

    It waits while any view of the process works, and ends once it is stopped. The stopping thread
    need not wait.
    """

    def __init__(self, quiet: Quiet) -> None:
        self._quiet = quiet
        self._stopped = False

    async def run(self, make: Callable[[Pause], Found]) -> Found | None:
        """The result of `make`, which calls its argument between two parts; None if it was
        stopped.
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
        """End the task at the next part."""
        self._stopped = True
        self._quiet.tell()

    def _pause(self) -> None:
        """Wait while any view is at work. Raises: Interrupted."""
        self._quiet.wait(lambda: self._stopped)
        if self._stopped:
            raise Interrupted
