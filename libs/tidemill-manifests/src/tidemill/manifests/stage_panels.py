"""The row of the stages: where the time goes from a record to a definite answer."""

from __future__ import annotations

from tidemill.manifests.panels import Panel, Query


def _per_second(metric: str) -> str:
    return f"sum by (stage) (rate({metric}{{$sel}}[$__rate_interval]))"


_SECONDS, _ROWS = (
    _per_second("tidemill_stage_seconds_total"),
    _per_second("tidemill_stage_rows_total"),
)
STAGES = (
    "Stages",
    (
        Panel(
            "Time by stage",
            "Seconds a second in each stage, waits included; stages overlap, so a sum may pass 1.",
            (Query(_SECONDS, "{{stage}}"),),
            "s",
            width=8,
        ),
        Panel(
            "Rows by stage",
            "Rows that each stage takes in.",
            (Query(_ROWS, "{{stage}}"),),
            "rowsps",
            width=8,
        ),
        Panel(
            "Time of a row by stage",
            "Seconds of a stage by its rows: the stage that became slow, at any load.",
            (Query(f"{_SECONDS} / ({_ROWS} > 0)", "{{stage}}"),),
            "s",
            width=8,
        ),
    ),
)
"""Row of a board: title and panels."""
