"""Precedence of calls: a thread that computes pauses while a call of another user goes on.

Threads have equal shares of the interpreter, whatever they do. A call is many short hops between
threads, and waits at each of them beside a thread that computes. The threads of sources and views
pause as well, for less of the time.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tidemill.rpc.identity import NOBODY

PAUSE_S_MAX = 0.05
"""Longest pause for one call: a call that takes longer is itself no short one."""

NOBODYS_PAUSE_S_MAX, NOBODYS_PAUSE_SHARE = 0.025, 1 / 3
"""Longest pause of the work of no user, and the most of it for each second since the last one."""

REMEMBERED_MAX = 10_000
"""Users whose last pause is remembered."""

Interrupt = Callable[[Callable[[], None]], None]
"""Has something called by long work, on its own thread, at its next look."""


class Precedence:
    """Calls that are under way, and the long work that pauses for them. Any thread may use it.

    A pause of work lasts at most `PAUSE_S_MAX`, and never longer than the time since the last pause
    of that user's work. So the work of a user keeps half of the time under any flood of calls, and
    the work of nobody three quarters. All threads of a user pause together.
    Cost: a microsecond for a call, a tenth of one for a look without a pause.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ended = threading.Condition(self._lock)
        self._calls: Counter[str] = Counter()
        self._works: list[_Work] = []
        self._pauses: dict[str, _Pause] = {}
        """The last pause of the work of each user; long ago, if it is not here."""
        self.contended: Callable[[bool], None] = lambda contended: None
        """Hears whether there is long work of a user, or calls of several."""
        self.idle: Callable[[], None] = lambda: None
        """Called on the thread of the last long work, as it ends: little is held then."""
        self._contended = False

    @contextmanager
    def work(self, user: str, interrupt: Interrupt, now_s: Callable[[], float]) -> Iterator[None]:
        """Long work for a user, on the thread that enters this."""
        work = _Work(user, interrupt, lambda: self.give_way(user, now_s))
        with self._lock:
            self._works.append(work)
            if self._others_call(user):
                interrupt(work.pause)
            self._tell()
        try:
            yield
        finally:
            with self._lock:
                self._works.remove(work)
                last = not self._works
                self._tell()
            if last:
                self.idle()

    def begin(self, user: str) -> None:
        """A call of a user begins: the long work of others pauses."""
        with self._lock:
            self._calls[user] += 1
            for work in self._works:
                if work.user != user:
                    work.interrupt(work.pause)
            self._tell()

    def end(self, user: str) -> None:
        """The call is over: work goes on for which no call of others is left."""
        with self._lock:
            self._calls[user] -= 1
            if not self._calls[user]:
                del self._calls[user]
            self._ended.notify_all()
            self._tell()

    def give_way(self, user: str, now_s: Callable[[], float]) -> None:
        """Pause the work of a user on this thread, if a call of another one goes on.

        It returns when no such call is left, or the pause of all threads of the user is over.
        """
        if not self._others_call(user):  # without the lock: the next look will see it
            return
        with self._lock:
            at_s, pause = now_s(), self._pauses.get(user)
            if pause is None or at_s >= pause.until_s:
                pause = self._pauses[user] = _Pause(at_s + _length_s(user, pause, at_s))
            self._ended.wait_for(lambda: not self._others_call(user), pause.until_s - at_s)
            pause.until_s = min(pause.until_s, now_s())
            if len(self._pauses) > REMEMBERED_MAX:
                self._pauses.clear()

    def _others_call(self, user: str) -> bool:
        return len(self._calls) > (user in self._calls)

    def _tell(self) -> None:
        # NB: before a call is known as one it has made hops, which wait beside long work as well.
        contended = len(self._calls) > 1 or bool(self._works)
        if contended != self._contended:
            self._contended = contended
            self.contended(contended)


@dataclass(slots=True)
class _Pause:
    """A pause of the work of one user, until an instant at most."""

    until_s: float


def _length_s(user: str, last: _Pause | None, at_s: float) -> float:
    """Length of a pause that begins now, at most."""
    went_on_s = at_s - last.until_s if last is not None else 1.0
    if user == NOBODY.name:
        return min(NOBODYS_PAUSE_S_MAX, NOBODYS_PAUSE_SHARE * went_on_s)
    return min(PAUSE_S_MAX, went_on_s)


@dataclass(frozen=True, slots=True, eq=False)
class _Work:
    """One piece of long work."""

    user: str
    interrupt: Interrupt
    pause: Callable[[], None]
