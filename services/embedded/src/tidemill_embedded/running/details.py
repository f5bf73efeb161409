"""What a runner says of itself, kind by kind, for `tidemill describe`."""

from __future__ import annotations

from typing import Any

from tidemill_embedded.running.arrangements import ArrangementRunner
from tidemill_embedded.running.readers import ActionRunner
from tidemill_embedded.running.sources import SourceRunner
from tidemill_embedded.running.view_runner import ViewRunner


def details_of(runner: object, role: str | None = None) -> dict[str, Any]:
    """The details that a runner knows; of a source with a role, those of that part."""
    if isinstance(runner, SourceRunner):
        found: dict[str, Any] = {}
        if role in (None, "remap"):
            counts = runner.remap.counts
            found |= {
                "offsetsKnown": _by_partition(counts.known),
                "offsetsBound": _by_partition(counts.bound),
                "bindings": counts.minted,
                "mintsLost": counts.lost,
                **runner.sharing(),
            }
        if role in (None, "reclock"):
            found["backfilled"] = runner.backfilled
        if role in (None, "compute"):
            found |= runner.progress()
        return found
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
    if isinstance(runner, ArrangementRunner):
        return runner.details()
    return {}


def _by_partition(offsets: dict[int, int]) -> dict[str, int]:
    return {str(partition): offset for partition, offset in sorted(offsets.items())}
