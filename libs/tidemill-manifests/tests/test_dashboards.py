"""Dashboards ask only for what is exported, and what is committed is what the code builds."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tidemill.manifests.__main__ import generated
from tidemill.manifests.dashboards import BOARDS
from tidemill.testkit.promql import FROM_OUTSIDE, exported, grouped_by, selectors

CHARTS = Path(__file__).resolve().parents[3] / "charts"
TARGETS = [
    (board.uid, panel["title"], target["expr"], target.get("legendFormat") or "")
    for board in BOARDS
    for panel in json.loads(board.to_json())["panels"]
    for target in panel.get("targets", ())
]


def test_the_charts_hold_what_the_code_builds() -> None:
    built = generated(CHARTS)
    committed = {path: (CHARTS / path).read_text() for path in built}
    assert committed == built, "run: make charts"
    boards = {f"tidemill/monitoring/dashboards/{b.uid}.json" for b in BOARDS}
    folder = CHARTS / "tidemill/monitoring/dashboards"
    assert {str(file.relative_to(CHARTS)) for file in folder.iterdir()} == boards


@pytest.mark.parametrize(("board", "title", "expression", "legend"), TARGETS)
def test_a_panel_asks_for_metrics_and_labels_that_exist(
    board: str, title: str, expression: str, legend: str
) -> None:
    known = exported()
    named = list(selectors(expression))
    assert named, f"{board}: {title} asks for nothing"
    labels: set[str] = set()
    for metric, narrowed in named:
        assert metric in known, f"{board}: {title} asks for {metric}, which nothing exports"
        labels |= known[metric] | FROM_OUTSIDE
        assert narrowed <= known[metric] | FROM_OUTSIDE, f"{board}: {title}: {metric} lacks a label"
    assert grouped_by(expression) <= labels
    assert set(re.findall(r"\{\{(\w+)\}\}", legend)) <= grouped_by(expression)


def test_an_unknown_metric_or_label_would_be_found() -> None:
    known = exported()
    assert next(name for name, _ in selectors("rate(tidemill_no_such_total[5m])")) not in known
    ((metric, narrowed),) = selectors('tidemill_action_outbox{view=~"$view"}')
    assert not narrowed <= known[metric]


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: str(board.uid))
def test_a_board_can_be_moved_between_grafanas(board: Any) -> None:
    document = json.loads(board.to_json())
    text = json.dumps(document["panels"])
    assert set(re.findall(r'"uid": "([^"]*)"', text)) == {"${datasource}"}
    variables = {each["name"] for each in document["templating"]["list"]}
    used = set(re.findall(r"\$(?!__)\{?(\w+)\}?", text))
    assert used <= variables
    shown = [panel for panel in document["panels"] if panel["type"] != "row"]
    assert all(panel["description"] for panel in shown)
