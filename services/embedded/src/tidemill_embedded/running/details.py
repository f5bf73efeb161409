"""What a runner says of itself, kind by kind, for `tidemill describe`."""

from __future__ import annotations

from typing import Any

from tidemill.catalog.source_collections import SourcePart
from tidemill_embedded.running.arrangements import ArrangementRunner
from tidemill_embedded.running.readers import ActionRunner
from tidemill_embedded.running.view_runner import ViewRunner


def details_of(runner: object) -> dict[str, Any]:
    """The details that a runner knows."""
    if isinstance(runner, SourcePart | ArrangementRunner):
        return runner.details()
    if isinstance(runner, ViewRunner):
        progress = runner.driver.progress
        return {
            "engine": runner.driver.mode,
            "strategy": runner.strategy,
            "windows": progress.windows,
            "changes": progress.changes,
            "evaluationSeconds": round(progress.seconds, 3),
            "inputs": dict(progress.inputs),
            "sharedWith": runner.driver.shared_with,
            **runner.details(),
        }
    if isinstance(runner, ActionRunner):
        done = runner.driver.counts
        return {
            **runner.firing(),
            "fired": done.fired,
            "duplicatesSuppressed": done.repeated,
            "effects": done.effects,
        }
    return {}
