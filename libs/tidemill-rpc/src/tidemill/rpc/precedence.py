"""Precedence of calls: a thread that computes pauses while a call of another user goes on.

Threads have equal shares of the interpreter, whatever they do. A call is many short hops between
threads, and waits at each of them beside a thread that computes.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PAUSE_S_MAX = 0.05
"""Longest pause for one call: a call that takes longer is itself no short one."""

REMEMBERED_MAX = 10_000
"""Users whose last pause is remembered."""

Interrupt = Callable[[Callable[[], None]], None]
"""Has something called by long work, on its own thread, at its next look."""


class Precedence:
    """Calls that are under way, and the long work that pauses for them. Any thread may use it.

    A pause of work lasts at most `PAUSE_S_MAX`, and never longer than the time since the last pause
    of that user's work. So the work of a user keeps half of the time under any flood of calls.
    Cost: a microsecond for a call.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: Counter[str] = Counter()
        self._works: list[_Work] = []
        self._paused_s: dict[str, float] = {}
        """When the work of each user paused last; long ago, if it is not here."""
        self.contended: Callable[[bool], None] = lambda contended: None
        """Hears whether a call goes on beside calls or long work of another user."""
        self._contended = False

    @contextmanager
    def work(self, user: str, interrupt: Interrupt, now_s: Callable[[], float]) -> Iterator[None]:
        """Long work for a user, on the thread that enters this."""
        work = _Work(user, interrupt, now_s, self._paused_s)
        with self._lock:
            self._works.append(work)
            if self._others_call(user):
                work.stop()
            self._tell()
        try:
            yield
        finally:
            with self._lock:
                self._works.remove(work)
                self._tell()

    def begin(self, user: str) -> None:
        """A call of a user begins: the long work of others pauses."""
        with self._lock:
            self._calls[user] += 1
            for work in self._works:
                if work.user != user:
                    work.stop()
            self._tell()

    def end(self, user: str) -> None:
        """The call is over: work goes on for which no call of others is left."""
        with self._lock:
            self._calls[user] -= 1
            if not self._calls[user]:
                del self._calls[user]
            for work in self._works:
                if not self._others_call(work.user):
                    work.clear.set()
            self._tell()

    def _others_call(self, user: str) -> bool:
        return len(self._calls) > (user in self._calls)

    def _tell(self) -> None:
        works = (self._others_call(work.user) for work in self._works)
        contended = len(self._calls) > 1 or any(works)
        if contended != self._contended:
            self._contended = contended
            self.contended(contended)


class _Work:
    """One piece of long work."""

    def __init__(
        self,
        user: str,
        interrupt: Interrupt,
        now_s: Callable[[], float],
        paused_s: dict[str, float],
    ) -> None:
        self.user = user
        self.clear = threading.Event()
        self._interrupt = interrupt
        self._now_s = now_s
        self._paused_s = paused_s

    def stop(self) -> None:
        self.clear.clear()
        self._interrupt(self._pause)

    def _pause(self) -> None:
        went_on_s = self._now_s() - self._paused_s.get(self.user, -PAUSE_S_MAX)
        self.clear.wait(min(PAUSE_S_MAX, went_on_s))
        if len(self._paused_s) > REMEMBERED_MAX:
            self._paused_s.clear()
        self._paused_s[self.user] = self._now_s()
