"""Which parts of the work this process leaves to other replicas, since they have failed here again
and again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidemill.catalog.store import Stored
from tidemill.host.settings import ServicesSettings
from tidemill.host.supervised import Supervised
from tidemill.runtime.clock import Clock
from tidemill.runtime.logs import get_logger

log = get_logger("claims")

_FAILING = ("Retrying", "Broken")
"""States that another process may improve; a Stalled part is stalled there, too."""


@dataclass(frozen=True, slots=True)
class _Left:
    stored: Stored
    times: int
    until_s: float


class Leaving:
    """Parts by role and item that are left for a pause, which doubles at each new failure here.

    After the pause this process may be given the part again. So a part that fails everywhere goes
    from one process to the next ever more rarely. One that fails here alone stays where it runs
    well.
    """

    def __init__(self, clock: Clock, settings: ServicesSettings) -> None:
        self._clock = clock
        self._settings = settings
        self._left: dict[tuple[str, str], _Left] = {}

    def look(self, role: str, item: str, stored: Stored, work: Supervised) -> None:
        """Leave a part that is worked on here, or forget that it was left, as its work does now."""
        key, settings = (role, item), self._settings
        if work.well:
            self._left.pop(key, None)
        elif (
            work.health.reason in _FAILING
            and work.failures >= settings.tries
            and not self._leaves(key)
        ):
            before = self._left.get(key)
            times = 0 if before is None else before.times
            pause_s = min(settings.left_s * 2.0 ** min(times, 30), settings.left_s_max)
            self._left[key] = _Left(stored, times + 1, self._clock.monotonic_s() + pause_s)
            log.warning(
                "left to others", role=role, item=item, tries=work.failures, pause_s=pause_s,
                error=work.health.message,
            )  # fmt: skip

    def items(self, role: str, live: Mapping[str, Stored]) -> list[str]:
        """The items of a role that are left now; those declared otherwise than when they failed are
        not.
        """
        for key, left in list(self._left.items()):
            if key[0] == role and live.get(key[1]) != left.stored:
                del self._left[key]
        return [item for each, item in self._left if each == role and self._leaves((each, item))]

    def _leaves(self, key: tuple[str, str]) -> bool:
        left = self._left.get(key)
        return left is not None and self._clock.monotonic_s() < left.until_s
