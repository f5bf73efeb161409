"""Every panel and every rule against a real Prometheus that scrapes a running system."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
from ruamel.yaml import YAML

from tidemill.client import Client
from tidemill.manifests.dashboards import BOARDS
from tidemill.testkit.promql import filled
from tidemill.testkit.servers import prometheus_server
from tidemill.testkit.up import UpProcess, up_process
from tidemill.time import sole_time

RULES = "charts/tidemill/monitoring/rules.yaml"
RESOURCES = """
apiVersion: tidemill.dev/v1alpha1
kind: Source
metadata: {name: flights}
spec:
  http: {}
  columns: [{name: plane, type: text}, {name: delay, type: int}, {name: at, type: int}]
  timestampInterval: 50ms
  eventTime: {column: at, timeline: air, expiresAfter: 1h, skew: 0s}
---
apiVersion: tidemill.dev/v1alpha1
kind: View
metadata: {name: delays}
spec:
  inputs: {flight: flights}
  program: "late(p, d) := flight(p, d, _) if d > 30;"
---
apiVersion: tidemill.dev/v1alpha1
kind: Action
metadata: {name: tell}
spec: {view: delays, goal: "late(p, d)", fireFrom: beginning, sink: {file: {path: late.jsonl}}}
"""
ROWS = ['{"plane":"N1","delay":45,"at":2000}', "no row", '{"plane":"N2","delay":5,"at":9000}']
ANSWER_S_MAX = 240.0


def definite(client: Client) -> bool | None:
    held = client.query("late(p, d)").upper
    return True if not held.empty and sole_time(held) >= 9_000 else None


def asked(server: UpProcess) -> None:
    """Do with the system whatever leaves a trace in its metrics."""
    server.until(lambda client: client.push("flights", ROWS))
    server.until(definite)
    with server.client() as client:
        list(client.subscribe("late(p, d)", start=8_000, until=9_000))


def answer(prometheus: str, expression: str) -> list[dict[str, Any]]:
    """The series that an instant query gives."""
    question = urlencode({"query": filled(expression)})
    with urlopen(f"{prometheus}/api/v1/query?{question}", timeout=ANSWER_S_MAX) as reply:
        found = json.load(reply)
    assert found["status"] == "success", found
    series: list[dict[str, Any]] = found["data"]["result"]
    return series


def unanswered(prometheus: str, expressions: dict[str, str]) -> dict[str, str]:
    """The expressions that give no series, asked until all do or time is up."""
    deadline = time.monotonic() + ANSWER_S_MAX
    left = expressions
    while left and time.monotonic() < deadline:
        left = {where: each for where, each in left.items() if not answer(prometheus, each)}
        time.sleep(0.2)
    return left


@pytest.mark.server
def test_every_panel_and_every_recording_rule_shows_something(tmp_path: Path) -> None:
    panels = {
        f"{board.uid}: {panel['title']} {target['refId']}": target["expr"]
        for board in BOARDS
        for panel in json.loads(board.to_json())["panels"]
        for target in panel.get("targets", ())
    }
    text = (Path(__file__).resolve().parents[3] / RULES).read_text()
    rules = YAML(typ="safe").load(text)
    (tmp_path / "rules.yaml").write_text(text.replace("interval: 15s", "interval: 1s"))
    recorded = {
        rule["record"]: rule["record"]
        for group in rules["groups"]
        for rule in group["rules"]
        # Sources, tables and views on the system timeline have a lag; these are on one of their
        # own.
        if rule.get("record") not in (None, "tidemill:collection_late:bool")
    }
    (tmp_path / "all.yaml").write_text(RESOURCES)
    with up_process(tmp_path, "-f", "all.yaml") as server:
        with server.client():
            pass
        target = server.address("http").removeprefix("http://")
        with prometheus_server(target, str(tmp_path / "rules.yaml")) as prometheus:
            asked(server)
            assert unanswered(prometheus.address, panels | recorded) == {}
            assert answer(prometheus.address, "tidemill_no_such_total") == []
            assert (
                answer(prometheus.address, 'ALERTS{alertstate="firing", severity="critical"}') == []
            )
