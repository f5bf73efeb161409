"""Alerts name what is exported, fire when they should, and each says what to do."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tidemill.testkit.promql import FROM_OUTSIDE, exported, grouped_by, selectors

ROOT = Path(__file__).resolve().parents[3]
MONITORING = ROOT / "charts/tidemill/monitoring"
RUNBOOKS = ROOT / "docs/runbooks"
RULES: list[dict[str, Any]] = [
    rule
    for group in YAML(typ="safe").load(MONITORING / "rules.yaml")["groups"]
    for rule in group["rules"]
]
ALERTS = [rule for rule in RULES if "alert" in rule]
RECORDED = {rule["record"]: grouped_by(str(rule["expr"])) for rule in RULES if "record" in rule}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule.get("alert") or rule["record"]))
def test_a_rule_names_metrics_and_labels_that_exist(rule: dict[str, Any]) -> None:
    known = exported() | RECORDED
    labels: set[str] = set()
    for metric, narrowed in selectors(rule["expr"]):
        assert metric in known
        labels |= known[metric] | FROM_OUTSIDE
        assert narrowed <= labels
    assert grouped_by(rule["expr"]) <= labels
    shown = re.findall(r"\$labels\.(\w+)", str(rule.get("annotations", "")))
    assert set(shown) <= labels | {"kind", "name"}


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: str(rule["alert"]))
def test_an_alert_says_how_bad_it_is_and_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert set(rule["annotations"]) == {"summary", "description", "runbook"}
    page = (RUNBOOKS / rule["annotations"]["runbook"]).read_text()
    assert rule["alert"] in page
    for section in ("## What it means", "## What to look at", "## What to do"):
        assert section in page


def test_every_runbook_belongs_to_an_alert() -> None:
    named = {rule["annotations"]["runbook"] for rule in ALERTS}
    assert {page.name for page in RUNBOOKS.glob("*.md")} == named | {"README.md"}
    index = (RUNBOOKS / "README.md").read_text()
    assert all(f"({page})" in index for page in named)


def test_every_alert_is_shown_firing_and_resting() -> None:
    text = (MONITORING / "rules_test.yaml").read_text()
    tests = YAML(typ="safe").load(text)["tests"]
    seen: dict[str, set[bool]] = {}
    for test in tests:
        for case in test["alert_rule_test"]:
            seen.setdefault(case["alertname"], set()).add(bool(case["exp_alerts"]))
    assert seen == {rule["alert"]: {True, False} for rule in ALERTS}


@pytest.mark.server
def test_promtool_takes_the_rules_and_they_fire_when_they_should() -> None:
    for command in (["check", "rules", "rules.yaml"], ["test", "rules", "rules_test.yaml"]):
        done = subprocess.run(
            ["promtool", *command], cwd=MONITORING, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "SUCCESS" in done.stdout
