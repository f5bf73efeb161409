"""docs/reference/metrics.md: the catalogue of metrics, and the recording rules and alerts on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from tidemill.runtime.metrics import CATALOGUE
from tidemill.testkit.reference.pages import code, head, sentence, table

RULES = "charts/tidemill/monitoring/rules.yaml"


def page(root: Path) -> str:
    """The whole page, with the rules of the chart in a checkout."""
    lines = head(
        "Metrics and alerts",
        "Every process shows its metrics at `/metrics`. The rules below stand in "
        f"[{RULES}](../../{RULES}); the chart ships them as a PrometheusRule.",
    )
    lines += ["## Metrics", ""]
    lines += table(
        ("metric", "kind", "labels", "meaning"),
        (
            (code(m.name), m.kind.value, ", ".join(map(code, m.labels)), m.meaning)
            for m in CATALOGUE
        ),
    )
    groups: list[Any] = YAML(typ="safe").load((root / RULES).read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    lines += ["", "## Alerts", ""]
    lines += table(
        ("alert", "severity", "for", "what it means", "runbook"),
        (
            (
                code(rule["alert"]), rule["labels"]["severity"], str(rule.get("for", "")),
                sentence(rule["annotations"]["description"]),
                f"[{rule['annotations']['runbook'].removesuffix('.md')}]"
                f"(../runbooks/{rule['annotations']['runbook']})",
            )
            for rule in rules
            if "alert" in rule
        ),
    )  # fmt: skip
    lines += ["", "## Recorded series", ""]
    lines += table(
        ("series", "expression"),
        ((code(rule["record"]), code(rule["expr"])) for rule in rules if "record" in rule),
    )
    return "\n".join(lines) + "\n"
