"""Settings of compute."""

from __future__ import annotations

from typing import Literal

import msgspec


class ComputeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far one step goes and how often holds move."""

    window_changes_max: int = 20_000
    """Input changes that one evaluation window of a view covers, as far as instants can be told apart; on columns as
    many as there are rows alive, if that is more, since each window looks at those."""

    columns_from: int | None = 2_000
    """From how many rows of an input on, alive and new, a window is evaluated on columns; None: never. The answers are
    the same; fewer rows are done before columns are made of them."""

    window_ticks_max: int = 2_000
    """Ticks of a ticked view that one step covers, so that what they say becomes readable meanwhile."""

    spark_rows: int = 20_000_000
    """A view without ticks whose inputs hold at least so many updates when it begins is evaluated up to there by a
    Spark job."""

    arrange_spark_rows: int = 5_000_000
    """An arrangement that lacks at least so many updates of its collection gets them by a Spark job."""

    maintenance: Literal["auto", "windows", "changes"] = "auto"
    """How a view is kept up to date: by windows over all that is alive (what a backlog needs), by the changes
    alone (what a live stream needs), or each where it costs less. The answers are the same."""

    poll_timeout_s: float = 5.0
    """How long to wait for an input before looking again; inputs that advance never wait so long."""

    hold_interval_s: float = 5.0
    """How often holds on inputs move on; between two moves history is kept a little longer."""

    table_interval_ms: int = 1_000
    """How often the upper of a table that nobody writes to advances."""
