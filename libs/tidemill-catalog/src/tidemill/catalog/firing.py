"""The instant from which an action fires, against what is known of the collection that it
watches.
"""

from __future__ import annotations

from tidemill.errors import UsageError
from tidemill.runtime.resources import ActionSpec
from tidemill.time import Frontier, sole_time


def refuse_forgotten(
    spec: ActionSpec, watched: str, since: Frontier, instead: str = "write"
) -> None:
    """Raises: UsageError if an action is to fire from before what is known of the collection that
    it watches.
    """
    asked = spec.fire_from
    if isinstance(asked, int) and not since.empty and not since.less_equal(asked):
        first = sole_time(since)
        raise UsageError(
            f"{asked} is forgotten: {watched} is known from {first} on; {instead} fireFrom: beginning for all "
            f"that is known, or {first} or later",
            reason="FireFrom", since=first,
        )  # fmt: skip
