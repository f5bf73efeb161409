"""Lags of views and actions, and counts of actions, as they are read at the scrape."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from tidemill.host.context import Context
from tidemill.host.observing import uppers
from tidemill.host.service import RunningParts
from tidemill.runtime.metrics import (
    ACTION_CORRECTIONS,
    ACTION_FENCED,
    ACTION_LAG,
    ACTION_OUTBOX,
    SPARK_EXECUTORS,
    VIEW_EXCHANGED,
    VIEW_GLOBAL_LAG,
    VIEW_LOCAL_LAG,
    VIEW_ON_SPARK,
    VIEW_RANGE_ROWS,
    VIEW_RANGE_UPPER,
    VIEW_RANGES_TOUCHED,
    VIEW_STAGES,
    VIEW_WINDOWS,
    Reading,
)
from tidemill.shard import Collections
from tidemill_compute.actions.part import ActionPart
from tidemill_compute.views.part import ViewPart
from tidemill_compute.views.view_updates import ViewProgress
from tidemill_compute.views.windows.session import WindowSession

WINDOW_COUNTS = {
    VIEW_WINDOWS: "windows", VIEW_RANGES_TOUCHED: "touched", VIEW_STAGES: "stages",
    VIEW_EXCHANGED: "exchanged",
}  # fmt: skip


def watch(context: Context, running: RunningParts, session: WindowSession) -> None:
    """Register everything of views and actions that is read at the scrape."""
    metrics, collections = context.metrics, context.collections
    metrics.watch(VIEW_LOCAL_LAG, lambda: list(_view_lags(running)))
    metrics.watch(VIEW_GLOBAL_LAG, lambda: list(_global_lags(running, collections)))
    metrics.watch(VIEW_RANGE_UPPER, lambda: list(_ranges(running, rows=False)))
    metrics.watch(VIEW_RANGE_ROWS, lambda: list(_ranges(running, rows=True)))
    metrics.watch(VIEW_ON_SPARK, lambda: list(_on_spark(running)))
    metrics.watch(SPARK_EXECUTORS, lambda: [({}, session.executors)])
    for metric, which in WINDOW_COUNTS.items():
        metrics.watch(metric, partial(_windows, running, which))
    metrics.watch(ACTION_LAG, lambda: list(_action_lags(running, collections)))
    metrics.watch(ACTION_OUTBOX, lambda: list(_outboxes(running)))
    metrics.watch(ACTION_CORRECTIONS, lambda: list(_counts(running, "corrected")))
    metrics.watch(ACTION_FENCED, lambda: list(_counts(running, "fenced")))


def _view_lags(running: RunningParts) -> Iterator[Reading]:
    for name, progress in _slowest(running).items():
        if progress.inputs:
            slowest = min(progress.inputs, key=lambda each: progress.inputs[each])
            behind = max(0, progress.inputs[slowest] - progress.lower) / 1000
            yield {"view": name, "slowest": slowest}, behind


def _slowest(running: RunningParts) -> dict[str, ViewProgress]:
    """The progress of each view; of one that is kept in ranges that of the slowest one here."""
    found: dict[str, ViewProgress] = {}
    for name, part in running.of(ViewPart):
        progress = part.driver.progress
        if name not in found or progress.lower < found[name].lower:
            found[name] = progress
    return found


def _ranges(running: RunningParts, *, rows: bool) -> Iterator[Reading]:
    for name, part in running.of(ViewPart):
        if part.share is not None:
            progress = part.driver.progress
            labels = {"view": name, "range": str(part.share)}
            yield labels, progress.held[1] if rows else progress.lower


def _global_lags(running: RunningParts, collections: Collections) -> Iterator[Reading]:
    known = uppers(collections)
    for name, part in dict(running.of(ViewPart)).items():
        outputs = [known[each] for each in part.outputs if each in known]
        roots = [each for each in part.roots if each in known]
        if outputs and roots:
            furthest = max(roots, key=lambda each: known[each])
            behind = max(0, known[furthest] - min(outputs)) / 1000
            yield {"view": name, "furthest": furthest}, behind


def _on_spark(running: RunningParts) -> Iterator[Reading]:
    for name, part in running.of(ViewPart):
        engines = part.driver.engines
        if engines is not None:
            yield {"view": name, "cause": engines.why.cause}, engines.running == "spark"


def _windows(running: RunningParts, which: str) -> list[Reading]:
    return [
        ({"view": name}, getattr(part.driver.engines.counts, which))
        for name, part in running.of(ViewPart)
        if part.driver.engines is not None
    ]


def _action_lags(running: RunningParts, collections: Collections) -> Iterator[Reading]:
    known = uppers(collections)
    for name, part in running.of(ActionPart):
        if {part.watched, part.covering} <= known.keys():
            behind = max(0, known[part.watched] - known[part.covering]) / 1000
            yield {"action": name}, behind


def _counts(running: RunningParts, which: str) -> Iterator[Reading]:
    for name, part in running.of(ActionPart):
        counts = part.driver.counts
        yield {"action": name}, counts.corrected if which == "corrected" else counts.fenced


def _outboxes(running: RunningParts) -> Iterator[Reading]:
    for name, part in running.of(ActionPart):
        counts = part.driver.counts
        yield {"action": name}, max(0, counts.fired - counts.effects)
