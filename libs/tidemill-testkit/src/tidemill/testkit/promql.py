"""Which metrics and labels a PromQL expression names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import promql_parser

from tidemill.runtime.metrics import CATALOGUE, Kind

FROM_OUTSIDE = {"namespace"}
"""Labels that whoever scrapes adds."""


def exported() -> dict[str, set[str]]:
    """Every series of the catalogue with its labels."""
    found: dict[str, set[str]] = {}
    for metric in CATALOGUE:
        if metric.kind is Kind.HISTOGRAM:
            for suffix in ("_bucket", "_sum", "_count"):
                more = {"le"} if suffix == "_bucket" else set()
                found[metric.name + suffix] = {*metric.labels, *more}
        else:
            found[metric.name] = set(metric.labels)
    return found


def filled(expression: str) -> str:
    """The expression with the variables of a dashboard filled in as Grafana does for All."""
    known = re.sub(r"\$__rate_interval|\$__interval", "1m", expression)
    return re.sub(r"\$(?!__)\w+", ".*", known)


def selectors(expression: str) -> Iterator[tuple[str, set[str]]]:
    """Each metric that is named, with the labels that it is narrowed down by."""
    yield from _selectors(promql_parser.parse(filled(expression)))


def grouped_by(expression: str) -> set[str]:
    """All labels that by, on and group_left name."""
    listed = re.findall(r"\b(?:by|on|group_left)\s*\(([^)]*)\)", expression)
    return {label.strip() for labels in listed for label in labels.split(",") if label.strip()}


def _selectors(
    node: Any,
) -> Iterator[tuple[str, set[str]]]:  # a node of the parser, which has no types
    if isinstance(node, promql_parser.VectorSelector):
        yield str(node.name), {matcher.name for matcher in node.matchers.matchers}
        return
    if isinstance(node, promql_parser.MatrixSelector):
        yield from _selectors(node.vector_selector)
        return
    for name in ("expr", "lhs", "rhs"):
        if hasattr(node, name):
            yield from _selectors(getattr(node, name))
    for argument in getattr(node, "args", ()):
        yield from _selectors(argument)
