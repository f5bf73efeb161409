"""What /metrics says of one process; everything is read at the moment of the scrape."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tidemill.runtime.metrics import (
    ACTION_OUTBOX,
    SOURCE_OFFSET_BOUND,
    SOURCE_OFFSET_COMMITTED,
    SOURCE_OFFSET_KNOWN,
    SOURCE_UNBOUND_UPDATES,
    STORE_NOT_DURABLE,
    VIEW_LOCAL_LAG,
    CollectionReading,
    Metrics,
    Reading,
)
from tidemill.shard import Collections
from tidemill_embedded.readers import ActionRunner, ViewRunner
from tidemill_embedded.sources import SourceRunner
from tidemill_embedded.system import System


def watch(
    metrics: Metrics, collections: Collections, system: System, risks: Sequence[str] = ()
) -> None:
    """Register every gauge of the process; `risks` are those of a store that is not durable."""
    metrics.watch(STORE_NOT_DURABLE, lambda: [({"risk": risk}, 1) for risk in risks])
    metrics.watch_collections(lambda: _collections(collections))
    metrics.watch(SOURCE_OFFSET_KNOWN, lambda: list(_offsets(system, "known")))
    metrics.watch(SOURCE_OFFSET_BOUND, lambda: list(_offsets(system, "bound")))
    metrics.watch(SOURCE_OFFSET_COMMITTED, lambda: list(_offsets(system, "committed")))
    metrics.watch(SOURCE_UNBOUND_UPDATES, lambda: list(_unbound(system)))
    metrics.watch(VIEW_LOCAL_LAG, lambda: list(_view_lags(system)))
    metrics.watch(ACTION_OUTBOX, lambda: list(_outboxes(system)))


def _collections(collections: Collections) -> list[CollectionReading]:
    found = []
    for name, state in collections.known().items():
        parts = state.parts()
        found.append(
            CollectionReading(
                name,
                state.description.timeline,
                state.since,
                state.upper,
                len(state.batches),
                sum(part.rows for part in parts),
                sum(part.size for part in parts),
                tuple(hold.owner or "session" for hold in state.reads.values()),
            )
        )
    return found


def _sources(system: System) -> Iterator[tuple[str, SourceRunner]]:
    for (_, name), supervised in system.each().items():
        if isinstance(supervised.runner, SourceRunner):
            yield name, supervised.runner


def _offsets(system: System, which: str) -> Iterator[Reading]:
    for name, runner in _sources(system):
        counts = runner.remap.counts
        offsets = {
            "known": counts.known,
            "bound": counts.bound,
            "committed": runner.committed(),
        }[which]
        for partition, offset in offsets.items():
            yield {"source": name, "partition": str(partition)}, offset


def _unbound(system: System) -> Iterator[Reading]:
    for name, runner in _sources(system):
        yield {"source": name}, runner.unbound()


def _view_lags(system: System) -> Iterator[Reading]:
    for (_, name), supervised in system.each().items():
        if isinstance(supervised.runner, ViewRunner):
            progress = supervised.runner.driver.progress
            if progress.inputs:
                slowest = min(progress.inputs, key=lambda each: progress.inputs[each])
                behind = max(0, progress.inputs[slowest] - progress.lower) / 1000
                yield {"view": name, "slowest": slowest}, behind


def _outboxes(system: System) -> Iterator[Reading]:
    for (_, name), supervised in system.each().items():
        if isinstance(supervised.runner, ActionRunner):
            counts = supervised.runner.driver.counts
            yield {"action": name}, max(0, counts.fired - counts.effects)
