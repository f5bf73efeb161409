"""Settings of laws over programs: the examples, and the strategies."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from tidemill.datalog.presence import Presence
from tidemill.datalog.strategy import Strategy

Presences: TypeAlias = "Mapping[str, Sequence[Presence]]"
"""The presences of each input of a program."""

STRATEGIES: st.SearchStrategy[Strategy] = st.sampled_from(["strata", "retraction"])


def drawn(examples: int, times: int = 1) -> settings:
    """The settings of a law: the same so many examples each run, or what `make laws` asks for.

    A law of quick examples draws `times` as many.
    """
    asked = os.environ.get("LAW_EXAMPLES")  # noqa: TID251  as `make laws` sets it
    return settings(
        max_examples=times * (examples if asked is None else int(asked)),
        derandomize=asked is None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
