"""The metrics of one process at /metrics; every value is read at the moment of the scrape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

from tidemill.catalog.made.making import made_by
from tidemill.host.exposing import exposed
from tidemill.host.service import Process, RunningParts
from tidemill.host.supervised import Supervised
from tidemill.rpc import call_metrics
from tidemill.runtime import logs
from tidemill.runtime.clock import Clock
from tidemill.runtime.metrics import (
    APPEND_MISMATCHES,
    BROKEN,
    CATALOGUE,
    CLAIM_TAKEOVER_SECONDS,
    CLAIM_TAKEOVERS,
    CLAIMS_GAINED,
    CLAIMS_GIVEN_UP,
    CLAIMS_HELD,
    CLAIMS_LAPSED,
    INSECURE,
    LOOP_LAG,
    REFUSALS,
    RESOURCE_READY,
    RESOURCE_RETRIES,
    SPARK_JOBS,
    SPARK_RETRIES,
    STAGE_ROWS,
    STAGE_SECONDS,
    STORE_NOT_DURABLE,
    CollectionReading,
    Metrics,
    Reading,
)
from tidemill.shard import Collections
from tidemill.shard.claims import Claiming
from tidemill.shard.state import KEEP_ALL_MS, Hold
from tidemill.spark.board import JobBoard
from tidemill.spark.launcher import FailureKind
from tidemill.time import sole_time

log = logs.get_logger("calls")


def watch(process: Process) -> None:
    """Register everything of a process that is read at the scrape, that of its parts included.

    Of collections that other processes write, only those that this one compacts are told of: they
    are known anew.
    """
    context, board, running = process.context, process.board, process.running
    metrics, collections = context.metrics, context.collections
    open_ports = [each.port for each in exposed(context.settings)]
    metrics.watch(STORE_NOT_DURABLE, lambda: [({"risk": risk}, 1) for risk in process.risks])
    metrics.watch(INSECURE, lambda: [({"port": port}, 1) for port in open_ports])
    metrics.watch_collections(lambda: _collections(process))
    metrics.watch(RESOURCE_READY, lambda: list(_readiness(running)))
    metrics.watch(RESOURCE_RETRIES, lambda: list(_by_resource(running, lambda s: s.retries)))
    metrics.watch(BROKEN, lambda: list(_by_resource(running, lambda s: s.broken)))
    metrics.watch(SPARK_JOBS, lambda: list(_jobs(board)))
    metrics.watch(
        SPARK_RETRIES,
        lambda: [({"failure": str(kind)}, board.retries[kind]) for kind in FailureKind],
    )
    metrics.watch(APPEND_MISMATCHES, lambda: by_collection(collections, collections.mismatches))
    stages = collections.stages
    for metric, counts in ((STAGE_SECONDS, stages.seconds), (STAGE_ROWS, stages.rows)):
        metrics.watch(metric, partial(_by_stage, counts))
    for parts in process.parts:
        parts.watch(running)
    watch_claims(metrics, process.work.claimants())


LOOKS_S = 0.1
"""Seconds between two looks whether the event loop comes to its work in time."""


async def watch_loop(metrics: Metrics, clock: Clock) -> None:
    """Measure for ever how much later than it was due the event loop wakes who sleeps on it."""
    while True:
        due_s = clock.monotonic_s() + LOOKS_S
        await clock.sleep(LOOKS_S)
        metrics.observe(LOOP_LAG, max(0.0, clock.monotonic_s() - due_s))


def expect_refusals(metrics: Metrics, limits: Iterable[str]) -> None:
    """Begin a count for each limit: an increase is seen from the first refusal on."""
    for limit in limits:
        metrics.increment(REFUSALS, 0, limit=f"limits.{limit}")


CLAIM_COUNTS = {
    CLAIMS_GAINED: "claimed",
    CLAIMS_GIVEN_UP: "given up",
    CLAIMS_LAPSED: "lapsed",
    CLAIM_TAKEOVERS: "taken over",
}


def watch_claims(metrics: Metrics, claimants: Mapping[str, Claiming]) -> None:
    """Register what is read of claims at the scrape, by role."""

    def counted(what: str) -> Callable[[], list[Reading]]:
        return lambda: [({"role": r}, c.happened[what]) for r, c in claimants.items()]

    for metric, what in CLAIM_COUNTS.items():
        metrics.watch(metric, counted(what))
    metrics.watch(
        CLAIMS_HELD,
        lambda: [({"role": r}, len(c.held())) for r, c in claimants.items()],
    )
    metrics.watch(
        CLAIM_TAKEOVER_SECONDS,
        lambda: [({"role": r}, c.silence_s) for r, c in claimants.items()],
    )


class CallRecorder:
    """Calls of the server in the metrics of the process."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._named = {metric.name: metric for metric in CATALOGUE}

    def count(self, name: str, labels: Mapping[str, str]) -> None:
        """One more of a counter."""
        self._metrics.increment(self._named[name], 1, **labels)

    def measure(self, name: str, seconds: float, labels: Mapping[str, str]) -> None:
        """One measurement of a histogram."""
        self._metrics.observe(self._named[name], seconds, **labels)


def observed_calls(metrics: Metrics) -> call_metrics.RecordedCalls:
    """An observer of the server's calls; a call that ended in a bug is logged with its error."""

    def report(call: call_metrics.EndedCall) -> None:
        if call.error is not None:
            log.error("call failed", method=call.method, exc_info=call.error)

    return call_metrics.RecordedCalls(CallRecorder(metrics), report)


def by_collection(collections: Collections, counts: Mapping[str, int]) -> list[Reading]:
    """Counts by collection, 0 where there is none: an increase is seen from the first on."""
    found = dict.fromkeys(collections.known(), 0) | dict(counts)
    return [({"collection": collection}, count) for collection, count in found.items()]


def _by_stage(counts: Mapping[str, float]) -> list[Reading]:
    return [({"stage": stage}, count) for stage, count in counts.items()]


def uppers(collections: Collections) -> dict[str, int]:
    """The upper of every collection that has one and is not closed."""
    return {
        name: sole_time(state.upper)
        for name, state in collections.known().items()
        if not state.upper.empty
    }


def _jobs(board: JobBoard) -> Iterator[Reading]:
    for (kind, state), count in board.jobs().items():
        yield {"kind": str(kind), "state": state}, count


def _holder(hold: Hold) -> str:
    """The holder of a collection as a label, without names of clients: these may differ each
    time.
    """
    return hold.owner if hold.lease_ms is None and hold.owner else "session"


def _collections(process: Process) -> list[CollectionReading]:
    context, found = process.context, []
    made = {
        named.collection: str(stored.resource)
        for stored in context.store.live()
        for named in made_by(stored, context.catalog)
    }
    for name, state in context.collections.known().items():
        if not process.work.has_slot_of(name):
            continue
        found.append(
            CollectionReading(
                name,
                state.description.timeline,
                state.since,
                state.upper,
                len(state.batches),
                sum(batch.rows for batch in state.batches),
                sum(batch.size for batch in state.batches),
                tuple(_holder(hold) for hold in state.reads.values()),
                state.description.kind,
                made.get(name, ""),
                None if state.description.retain_ms == KEEP_ALL_MS else state.description.retain_ms,
            )
        )
    return found


def _readiness(running: RunningParts) -> Iterator[Reading]:
    ready: dict[tuple[str, str], bool] = {}
    for key, supervised, _ in running.each():
        ready[key] = ready.get(key, True) and supervised.health.ready
    for (kind, name), well in ready.items():
        yield {"kind": kind, "name": name}, float(well)


def _by_resource(running: RunningParts, count: Callable[[Supervised], int]) -> Iterator[Reading]:
    counts: Counter[tuple[str, str]] = Counter()
    for key, supervised, _ in running.each():
        counts[key] += count(supervised)
    for (kind, name), counted in counts.items():
        yield {"kind": kind, "name": name}, counted
