"""Inputs of views, and those with whom a view shares them."""

from __future__ import annotations

from collections.abc import Iterable

from tidemill.catalog.directory import ViewOf
from tidemill.datalog.logical.plan import logical_plan
from tidemill.errors import UsageError

EXPLANATIONS = ("plan", "analyze", "json", "analyze-json", "dot", "svg")
"""Forms in which a view is explained."""


def check_form(form: str) -> None:
    """Raises: UsageError for what is no form of an explanation."""
    if form not in EXPLANATIONS:
        raise UsageError(f"no such form of a plan: {form}; use {', '.join(EXPLANATIONS)}")


def alike(found: ViewOf, predicate: str, whole: bool, others: Iterable[ViewOf]) -> list[str]:
    """Other views that read an input in the same way, `whole` or as the programs ask.

    One process holds that input once for all of them.
    """
    mine, scan = found.inputs[predicate], logical_plan(found.program).scans.get(predicate)
    names = []
    for other in others:
        same = [p for p, each in other.inputs.items() if each.collection == mine.collection]
        if other.name == found.name or not same:
            continue
        scans = logical_plan(other.program).scans
        theirs = [None if whole or p not in scans else scans[p].nameless for p in same]
        if (None if whole or scan is None else scan.nameless) in theirs:
            names.append(other.name)
    return sorted(names)
