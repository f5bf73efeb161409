"""What /metrics says of one process; everything is read at the moment of the scrape."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import TypeVar

from tidemill.catalog.source_collections import SourcePart
from tidemill.rpc import call_metrics
from tidemill.rpc.handlers import QueryHandlers
from tidemill.rpc.messages import (
    Answer,
    CollectionInfo,
    Event,
    Explanation,
    TimestampExplanation,
    Translation,
)
from tidemill.runtime import logs
from tidemill.runtime.clock import Clock
from tidemill.runtime.metrics import (
    ACTION_CORRECTIONS,
    ACTION_FENCED,
    ACTION_LAG,
    ACTION_OUTBOX,
    APPEND_MISMATCHES,
    BROKEN,
    CATALOGUE,
    CLAIM_TAKEOVER_SECONDS,
    CLAIM_TAKEOVERS,
    CLAIMS_GAINED,
    CLAIMS_GIVEN_UP,
    CLAIMS_HELD,
    CLAIMS_LAPSED,
    COMPACTION_FUEL,
    COMPACTION_REFUSALS,
    INSECURE,
    LOOP_LAG,
    MINT_RETRIES,
    ORPHANS_DELETED,
    QUERY_DURATION,
    REFUSALS,
    REMAP_BINDINGS,
    RESOURCE_READY,
    RESOURCE_RETRIES,
    SOURCE_OFFSET_BOUND,
    SOURCE_OFFSET_COMMITTED,
    SOURCE_OFFSET_KNOWN,
    SOURCE_UNBOUND_UPDATES,
    SPARK_JOBS,
    SPARK_RETRIES,
    STORE_NOT_DURABLE,
    SUBSCRIPTIONS,
    VIEW_GLOBAL_LAG,
    VIEW_LOCAL_LAG,
    CollectionReading,
    Metrics,
    Reading,
)
from tidemill.shard import Collections
from tidemill.shard.claims import Claiming
from tidemill.shard.state import KEEP_ALL_MS, Hold
from tidemill.spark.board import JobBoard
from tidemill.spark.launcher import FailureKind
from tidemill.time import SourceFrontier, sole_time
from tidemill_compaction.driver import CompactionDriver
from tidemill_embedded.running.readers import ActionRunner
from tidemill_embedded.running.runner import Supervised
from tidemill_embedded.running.view_runner import ViewRunner
from tidemill_embedded.system import System
from tidemill_reclock.part import WritePart
from tidemill_remap.part import BindPart

log = logs.get_logger("calls")


def watch(
    metrics: Metrics,
    collections: Collections,
    system: System,
    compaction: CompactionDriver,
    board: JobBoard,
    risks: Sequence[str] = (),
    exposed: Sequence[str] = (),
    mine: Callable[[str], bool] | None = None,
) -> None:
    """Register everything that is read at the scrape; `risks` are those of a store that is not durable,
    `exposed` the ports beyond loopback that ask nobody who they are.

    Of collections that other processes write, only those that are `mine` are told of: they are known anew.
    """
    metrics.watch(STORE_NOT_DURABLE, lambda: [({"risk": risk}, 1) for risk in risks])
    metrics.watch(INSECURE, lambda: [({"port": port}, 1) for port in exposed])
    metrics.watch_collections(lambda: _collections(collections, system, mine))
    metrics.watch(SOURCE_OFFSET_KNOWN, lambda: list(_probed(system, "known")))
    metrics.watch(SOURCE_OFFSET_BOUND, lambda: list(_probed(system, "bound")))
    metrics.watch(SOURCE_OFFSET_COMMITTED, lambda: list(_committed(system)))
    metrics.watch(SOURCE_UNBOUND_UPDATES, lambda: list(_unbound(system)))
    metrics.watch(VIEW_LOCAL_LAG, lambda: list(_view_lags(system)))
    metrics.watch(VIEW_GLOBAL_LAG, lambda: list(_global_lags(system, collections)))
    metrics.watch(ACTION_LAG, lambda: list(_action_lags(system, collections)))
    metrics.watch(RESOURCE_READY, lambda: list(_readiness(system)))
    metrics.watch(RESOURCE_RETRIES, lambda: list(_retries(system)))
    metrics.watch(BROKEN, lambda: list(_broken(system, compaction)))
    metrics.watch(COMPACTION_REFUSALS, lambda: [({}, compaction.counts.skipped)])
    metrics.watch(ORPHANS_DELETED, lambda: [({}, compaction.counts.orphans)])
    metrics.watch(ACTION_OUTBOX, lambda: list(_outboxes(system)))
    metrics.watch(ACTION_CORRECTIONS, lambda: list(_action_counts(system, "corrected")))
    metrics.watch(ACTION_FENCED, lambda: list(_action_counts(system, "fenced")))
    metrics.watch(REMAP_BINDINGS, lambda: list(_mints(system, "minted")))
    metrics.watch(MINT_RETRIES, lambda: list(_mints(system, "lost")))
    metrics.watch(SPARK_JOBS, lambda: list(_jobs(board)))
    metrics.watch(
        SPARK_RETRIES,
        lambda: [({"failure": str(kind)}, board.retries[kind]) for kind in FailureKind],
    )
    metrics.watch(
        APPEND_MISMATCHES,
        lambda: list(_by_collection(_from_0(collections, collections.mismatches))),
    )
    metrics.watch(
        COMPACTION_FUEL,
        lambda: list(_by_collection(_from_0(collections, compaction.counts.rewritten))),
    )


LOOKS_S = 0.1
"""How often it is seen whether the event loop comes to its work in time."""


async def watch_loop(metrics: Metrics, clock: Clock) -> None:
    """Measure for ever how much later than it was due the event loop wakes who sleeps on it."""
    while True:
        due_s = clock.monotonic_s() + LOOKS_S
        await clock.sleep(LOOKS_S)
        metrics.observe(LOOP_LAG, max(0.0, clock.monotonic_s() - due_s))


def expect_refusals(metrics: Metrics, limits: Iterable[str]) -> None:
    """Let there be a count of each limit from the start: an increase is seen from the first refusal on."""
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


class ObservedQueries:
    """Query handlers whose answers are timed and whose subscribers are counted."""

    def __init__(self, inner: QueryHandlers, metrics: Metrics) -> None:
        self._inner = inner
        self._metrics = metrics
        self._open: Counter[str] = Counter()
        metrics.watch(SUBSCRIPTIONS, lambda: list(_by_collection(self._open)))

    async def snapshot(self, collection: str, as_of: int | None, wait_s: float | None) -> Answer:
        """As the inner handlers, timed; so are all below."""
        with self._metrics.timed(QUERY_DURATION, kind="snapshot"):
            return await self._inner.snapshot(collection, as_of, wait_s)

    async def ask(self, goal: str, as_of: int | None, wait_s: float | None) -> Answer:
        with self._metrics.timed(QUERY_DURATION, kind="ask"):
            return await self._inner.ask(goal, as_of, wait_s)

    async def subscribe(
        self, goal: str, start: int | None, snapshot: bool, until: int | None
    ) -> AsyncIterator[Event]:
        """As the inner handlers, counted from its first event while it lasts."""
        name, begun = goal.partition("(")[0].strip(), False
        try:
            events = self._inner.subscribe(goal, start, snapshot, until)
            async with aclosing(events) as stream:  # type: ignore[type-var]  # a generator
                async for event in stream:
                    # NB: now, that there is such a collection: other names would be labels for ever.
                    self._open[name] += not begun
                    begun = True
                    yield event
        finally:
            if begun:
                self._open[name] -= 1

    async def why(self, record: str, as_of: int | None) -> Explanation:
        with self._metrics.timed(QUERY_DURATION, kind="why"):
            return await self._inner.why(record, as_of)

    async def why_not(self, record: str, as_of: int | None) -> Explanation:
        with self._metrics.timed(QUERY_DURATION, kind="why_not"):
            return await self._inner.why_not(record, as_of)

    async def explain(self, view: str, form: str) -> str:
        with self._metrics.timed(QUERY_DURATION, kind="explain"):
            return await self._inner.explain(view, form)

    async def tables(
        self, names: Sequence[str], as_of: int | None, wait_s: float | None
    ) -> Mapping[str, Answer]:
        with self._metrics.timed(QUERY_DURATION, kind="tables"):
            return await self._inner.tables(names, as_of, wait_s)

    async def explain_timestamp(
        self, names: Sequence[str], as_of: int | None
    ) -> TimestampExplanation:
        return await self._inner.explain_timestamp(names, as_of)

    async def translate(
        self, source: str, wanted: int | SourceFrontier | None, wait_s: float | None
    ) -> Translation:
        with self._metrics.timed(QUERY_DURATION, kind="translate"):
            return await self._inner.translate(source, wanted, wait_s)

    async def collections(self) -> Sequence[CollectionInfo]:
        with self._metrics.timed(QUERY_DURATION, kind="collections"):
            return await self._inner.collections()


def _from_0(collections: Collections, counts: Mapping[str, int]) -> dict[str, int]:
    """The counts, and 0 for collections that have none: an increase is seen from the first on."""
    return dict.fromkeys(collections.known(), 0) | dict(counts)


def _by_collection(counts: Mapping[str, int]) -> Iterator[Reading]:
    for collection, count in counts.items():
        yield {"collection": collection}, count


def _mints(system: System, which: str) -> Iterator[Reading]:
    for name, part in _parts(system, BindPart):
        counts = part.driver.counts
        yield {"source": name}, counts.minted if which == "minted" else counts.lost


def _jobs(board: JobBoard) -> Iterator[Reading]:
    for (kind, state), count in board.jobs().items():
        yield {"kind": str(kind), "state": state}, count


def _holder(hold: Hold) -> str:
    """Who holds a collection back, as a label: what clients call themselves is none, since they may do so anew each time."""
    return hold.owner if hold.lease_ms is None and hold.owner else "session"


def _collections(
    collections: Collections, system: System, mine: Callable[[str], bool] | None
) -> list[CollectionReading]:
    found = []
    made = system.made()
    for name, state in collections.known().items():
        if mine is not None and not mine(name):
            continue
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
                tuple(_holder(hold) for hold in state.reads.values()),
                state.description.kind,
                made.get(name, ""),
                None if state.description.retain_ms == KEEP_ALL_MS else state.description.retain_ms,
            )
        )
    return found


Part = TypeVar("Part", bound=SourcePart)


def _parts(system: System, kind: type[Part]) -> Iterator[tuple[str, Part]]:
    """The sources of which this process has that part."""
    for (_, name), _, runner in system.each():
        if isinstance(runner, kind):
            yield name, runner


def _probed(system: System, which: str) -> Iterator[Reading]:
    for name, part in _parts(system, BindPart):
        counts = part.driver.counts
        yield from _by_partition(name, counts.known if which == "known" else counts.bound)


def _committed(system: System) -> Iterator[Reading]:
    for name, part in _parts(system, WritePart):
        yield from _by_partition(name, part.committed())


def _by_partition(source: str, offsets: Mapping[int, int]) -> Iterator[Reading]:
    for partition, offset in offsets.items():
        yield {"source": source, "partition": str(partition)}, offset


def _unbound(system: System) -> Iterator[Reading]:
    for name, part in _parts(system, WritePart):
        if part.writing:
            yield {"source": name}, part.unbound()


def _view_lags(system: System) -> Iterator[Reading]:
    for (_, name), _, runner in system.each():
        if isinstance(runner, ViewRunner):
            progress = runner.driver.progress
            if progress.inputs:
                slowest = min(progress.inputs, key=lambda each: progress.inputs[each])
                behind = max(0, progress.inputs[slowest] - progress.lower) / 1000
                yield {"view": name, "slowest": slowest}, behind


def _global_lags(system: System, collections: Collections) -> Iterator[Reading]:
    uppers = _uppers(collections)
    for (_, name), _, runner in system.each():
        if isinstance(runner, ViewRunner):
            outputs = [uppers[each] for each in runner.outputs if each in uppers]
            roots = [each for each in runner.roots if each in uppers]
            if outputs and roots:
                furthest = max(roots, key=lambda each: uppers[each])
                behind = max(0, uppers[furthest] - min(outputs)) / 1000
                yield {"view": name, "furthest": furthest}, behind


def _action_lags(system: System, collections: Collections) -> Iterator[Reading]:
    uppers = _uppers(collections)
    for (_, name), _, runner in system.each():
        if isinstance(runner, ActionRunner) and {runner.watched, runner.covering} <= uppers.keys():
            behind = max(0, uppers[runner.watched] - uppers[runner.covering]) / 1000
            yield {"action": name}, behind


def _uppers(collections: Collections) -> dict[str, int]:
    """The upper of every collection that has one and is not closed."""
    return {
        name: sole_time(state.upper)
        for name, state in collections.known().items()
        if not state.upper.empty
    }


def _readiness(system: System) -> Iterator[Reading]:
    ready: dict[tuple[str, str], bool] = {}
    for key, supervised, _ in system.each():
        ready[key] = ready.get(key, True) and supervised.health.ready
    for (kind, name), well in ready.items():
        yield {"kind": kind, "name": name}, float(well)


def _retries(system: System) -> Iterator[Reading]:
    yield from _by_resource(system, lambda supervised: supervised.retries)


def _broken(system: System, compaction: CompactionDriver) -> Iterator[Reading]:
    yield from _by_resource(system, lambda supervised: supervised.broken)
    for collection, count in compaction.counts.broken.items():
        yield {"kind": "Collection", "name": collection}, count


def _by_resource(system: System, count: Callable[[Supervised], int]) -> Iterator[Reading]:
    counts: Counter[tuple[str, str]] = Counter()
    for key, supervised, _ in system.each():
        counts[key] += count(supervised)
    for (kind, name), counted in counts.items():
        yield {"kind": kind, "name": name}, counted


def _action_counts(system: System, which: str) -> Iterator[Reading]:
    for (_, name), _, runner in system.each():
        if isinstance(runner, ActionRunner):
            counts = runner.driver.counts
            found = counts.corrected if which == "corrected" else counts.fenced
            yield {"action": name}, found


def _outboxes(system: System) -> Iterator[Reading]:
    for (_, name), _, runner in system.each():
        if isinstance(runner, ActionRunner):
            counts = runner.driver.counts
            yield {"action": name}, max(0, counts.fired - counts.effects)
