"""Settings of compute."""

from __future__ import annotations

import msgspec


class ComputeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Steps of evaluation, and movement of holds."""

    step_changes_max: int = 100_000
    """Input changes that one step of a view covers, as far as instants differ; an eighth more
    where nothing is left then.

    A backlog is read piece by piece, twice as many changes at a time. A step that needs more
    memory than there is begins again with fewer.
    """

    action_changes_max: int = 5_000
    """Changes that one step of an action takes, as far as instants differ, and firings that its
    sink is handed at a time. A backlog behind a slow sink waits in the collection.
    """

    action_lanes: int = 8
    """Requests that an action has under way at its endpoint at a time, none of them with the same
    first argument. With 1 all effects are one after the other.
    """

    window_ticks_max: int = 2_000
    """Ticks of a ticked view that one step covers; their output is readable after each step."""

    tick_returns_max: int = 10_000
    """Ticks in a row of a view that ticks on change for which nothing but @next is a reason."""

    spark_rows: int = 20_000_000
    """Updates of the inputs of a new view without ticks from which on a Spark job evaluates
    them."""

    arrange_spark_rows: int = 5_000_000
    """Updates that an arrangement lacks from which on a Spark job adds them."""

    link: str = ""
    """URL at which people look at what an action has told, for its messages.

    The texts `${record}` and `${instant}` in it stand for what was told, and for when it was.
    """

    poll_timeout_s: float = 5.0
    """Longest wait for an input before another look; inputs that advance never wait so long."""

    hold_interval_s: float = 5.0
    """Time between two moves of holds on inputs; history is kept that much longer."""

    table_interval_ms: int = 1_000
    """Time between two advances of the upper of a table without writes."""
