"""Speed of work over the last seconds, and the time until it has caught up."""

from __future__ import annotations

from collections import deque

from tidemill.runtime.clock import Clock

WINDOW_S = 30.0
"""Seconds over which a speed is taken."""
SPACING_S = 0.5
"""Least seconds between a sample that is kept and the next but one."""
KEEPS_UP = 0.95
"""Share of the speed of work from which on arrivals leave no estimate: the rest is noise."""


class Speed:
    """Growth of a count per second over the last `WINDOW_S`; zero once it stands still so long.

    Cost: constant for each note, of at most 124 samples.
    """

    def __init__(self, clock: Clock, count: float | None = None) -> None:
        """The count is `count` now, or not known before the first note."""
        self._clock = clock
        self._samples: deque[tuple[float, float]] = deque()
        if count is not None:
            self.note(count)

    def note(self, count: float) -> None:
        """The count is so much now; a smaller one than before begins anew."""
        now_s, samples = self._clock.monotonic_s(), self._samples
        if samples and count < samples[-1][1]:
            samples.clear()
        if len(samples) > 1 and now_s - samples[-2][0] < SPACING_S:
            samples[-1] = (now_s, count)
        else:
            samples.append((now_s, count))
        self._forget(now_s)

    def per_s(self) -> float:
        """Growth per second, until now."""
        now_s = self._clock.monotonic_s()
        self._forget(now_s)
        if len(self._samples) < 2:
            return 0.0
        (first_s, first), (_, last) = self._samples[0], self._samples[-1]
        return (last - first) / max(now_s - first_s, SPACING_S)

    def _forget(self, now_s: float) -> None:
        """Keep of the samples before the window the latest one: it is the count where it begins."""
        while len(self._samples) > 1 and self._samples[1][0] <= now_s - WINDOW_S:
            self._samples.popleft()


def time_left_ms(behind: int, per_s: float, arriving_per_s: float = 0.0) -> int | None:
    """Milliseconds until nothing is behind, if both speeds stay.

    0 where nothing is behind; None where the end comes no nearer.
    """
    if not behind:
        return 0
    if arriving_per_s >= KEEPS_UP * per_s:
        return None
    return int(1000 * behind / (per_s - arriving_per_s))
