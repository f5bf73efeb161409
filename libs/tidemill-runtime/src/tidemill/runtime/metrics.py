"""The metrics of one process, in a registry of its own.

`CATALOGUE` is the whole list of names; a dashboard or an alert may use nothing else. Gauges are
read when somebody scrapes, through callbacks, and never pushed: a source that stands still must
look late. A counter is either added to, or read like a gauge from whoever counts anyway. A
collection without a frontier has no lag sample; it counts as hydrating.
"""

from __future__ import annotations

from collections import Counter as Counted
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from tidemill.errors import UsageError
from tidemill.runtime.breaking import told
from tidemill.runtime.clock import Clock
from tidemill.runtime.logs import get_logger
from tidemill.time.antichain import Frontier, sole_time

log = get_logger("metrics")

SYSTEM_TIMELINE = "system"


class Kind(Enum):
    """Kind of a metric: counter, gauge or histogram."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One name of the catalogue."""

    name: str
    kind: Kind
    meaning: str
    labels: tuple[str, ...] = ()


def _counter(name: str, meaning: str, *labels: str) -> Metric:
    return Metric(name, Kind.COUNTER, meaning, labels)


def _gauge(name: str, meaning: str, *labels: str) -> Metric:
    return Metric(name, Kind.GAUGE, meaning, labels)


def _histogram(name: str, meaning: str, *labels: str) -> Metric:
    return Metric(name, Kind.HISTOGRAM, meaning, labels)


_OF_A_COLLECTION = ("collection", "timeline")
_OF_A_PARTITION = ("source", "partition")

COLLECTION_SINCE = _gauge(
    "tidemill_collection_since",
    "Oldest instant, in milliseconds of the timeline, at which the collection is exact.",
    *_OF_A_COLLECTION,
)
COLLECTION_UPPER = _gauge(
    "tidemill_collection_upper",
    "First instant, in milliseconds of the timeline, that may still change.",
    *_OF_A_COLLECTION,
)
COLLECTION_UPPER_LAG = _gauge(
    "tidemill_collection_upper_lag_seconds",
    "Distance of upper from the present; only for collections on the system timeline.",
    *_OF_A_COLLECTION,
)
COLLECTION_SINCE_LAG = _gauge(
    "tidemill_collection_since_lag_seconds",
    "Distance of since from the present; only for collections on the system timeline.",
    *_OF_A_COLLECTION,
)
COLLECTION_HISTORY = _gauge(
    "tidemill_collection_history_seconds",
    "History that can be asked for: upper minus since.",
    *_OF_A_COLLECTION,
)
COLLECTION_RETAIN = _gauge(
    "tidemill_collection_retain_seconds",
    "History that the collection keeps by itself; no sample if it keeps all, or what readers hold.",
    *_OF_A_COLLECTION,
)
COLLECTION_INFO = _gauge(
    "tidemill_collection_info",
    "Always 1: what the collection is, and the resource that users know it by, if it is one's.",
    *_OF_A_COLLECTION,
    "kind",
    "resource",
)
COLLECTIONS_HYDRATING = _gauge(
    "tidemill_collections_hydrating", "Collections that no frontier is known of yet."
)
COLLECTION_BATCHES = _gauge(
    "tidemill_arrangement_batches", "Batches of the collection.", *_OF_A_COLLECTION
)
COLLECTION_UPDATES = _gauge(
    "tidemill_arrangement_updates", "Updates in the batches of the collection.", *_OF_A_COLLECTION
)
COLLECTION_BYTES = _gauge(
    "tidemill_arrangement_bytes",
    "Stored bytes of the batches of the collection.",
    *_OF_A_COLLECTION,
)
READ_HOLDS = _gauge(
    "tidemill_read_holds",
    "Holders that hold the since of the collection back; session stands for all with a lease.",
    "collection",
    "holder",
)
STORE_NOT_DURABLE = _gauge(
    "tidemill_store_not_durable",
    "A setting of the store that may lose acknowledged writes.",
    "risk",
)
INSECURE = _gauge(
    "tidemill_insecure",
    "A port beyond loopback that answers whoever reaches it, because `insecure` is set.",
    "port",
)
SOURCE_OFFSET_KNOWN = _gauge(
    "tidemill_source_offset_known", "Offset up to which the log has records.", *_OF_A_PARTITION
)
SOURCE_OFFSET_BOUND = _gauge(
    "tidemill_source_offset_bound", "Offset up to which bindings are minted.", *_OF_A_PARTITION
)
SOURCE_OFFSET_COMMITTED = _gauge(
    "tidemill_source_offset_committed",
    "Offset up to which records are durably reclocked.",
    *_OF_A_PARTITION,
)
SOURCE_UNBOUND_UPDATES = _gauge(
    "tidemill_source_unbound_updates", "Updates that wait for a binding.", "source"
)
SOURCE_RECORDS = _counter(
    "tidemill_source_records_total", "Records read from the source.", "source"
)
SOURCE_BYTES = _counter("tidemill_source_bytes_total", "Bytes read from the source.", "source")
DECODE_ERRORS = _counter(
    "tidemill_decode_errors_total", "Records that became dead letters.", "source"
)
REMAP_BINDINGS = _counter("tidemill_remap_bindings_total", "Bindings minted.", "source")
MINT_RETRIES = _counter(
    "tidemill_mint_retries_total", "Bindings that another process minted first.", "source"
)
RECLOCK_DURATION = _histogram(
    "tidemill_reclock_duration_seconds",
    "Time from records to durable updates, for each append.",
    "source",
)
APPEND_MISMATCHES = _counter(
    "tidemill_append_mismatches_total", "Appends that another writer was ahead of.", "collection"
)
STAGE_SECONDS = _counter(
    "tidemill_stage_seconds_total",
    "Time of the stages decode, bind, stage, sort, encode, write, read, operators, commit; waits "
    "included, and stages overlap.",
    "stage",
)
STAGE_ROWS = _counter("tidemill_stage_rows_total", "Rows that a stage took in.", "stage")
COMPACTION_FUEL = _counter(
    "tidemill_compaction_fuel_used_total", "Updates that compaction has rewritten.", "collection"
)
VIEW_LOCAL_LAG = _gauge(
    "tidemill_view_local_lag_seconds",
    "Lag of the view behind its slowest direct input.",
    "view",
    "slowest",
)
VIEW_RANGE_UPPER = _gauge(
    "tidemill_view_range_upper",
    "Instant below which a range of the view is written, in ms; the view is read below the least.",
    "view",
    "range",
)
VIEW_RANGE_ROWS = _gauge(
    "tidemill_view_range_rows", "Rows of inputs and outputs that a range keeps.", "view", "range"
)
VIEW_ON_SPARK = _gauge(
    "tidemill_view_on_spark", "1 if windows on Spark keep the view, else 0; why.", "view", "cause"
)
VIEW_WINDOWS = _counter(
    "tidemill_view_windows_total", "Windows of the view that a driver evaluated.", "view"
)
VIEW_RANGES_TOUCHED = _counter(
    "tidemill_view_ranges_touched_total", "Ranges that these windows looked at.", "view"
)
VIEW_STAGES = _counter("tidemill_view_stages_total", "Stages of Spark in these windows.", "view")
VIEW_EXCHANGED = _counter(
    "tidemill_view_exchanged_bytes_total",
    "Bytes that fragments of the view dealt out to one another in these windows.",
    "view",
)
VIEW_STEP_DURATION = _histogram(
    "tidemill_view_step_duration_seconds", "Time to evaluate one window.", "view"
)
LATE_EVENTS = _counter(
    "tidemill_late_events_total", "Events that came behind the event frontier.", "source"
)
EVENT_TIME_MOVES = _counter(
    "tidemill_event_time_moves_total",
    "Moves of an event frontier, by what moved it: rows, heartbeat, idleTimeout or silence.",
    "source",
    "mover",
)
ACTIONS_FIRED = _counter("tidemill_actions_fired_total", "Actions handed to their sink.", "action")
ACTION_DUPLICATES = _counter(
    "tidemill_action_duplicates_total", "Firings suppressed because they had happened.", "action"
)
ACTION_CORRECTIONS = _counter(
    "tidemill_action_corrections_total",
    "Events that were withdrawn, changed or came back after they had fired.",
    "action",
)
ACTION_FENCED = _counter(
    "tidemill_action_fenced_total", "Effects refused because a newer process has started.", "action"
)
ACTION_OUTBOX = _gauge(
    "tidemill_action_outbox", "Firings in the outbox that the sink has not confirmed.", "action"
)
QUERY_DURATION = _histogram(
    "tidemill_query_duration_seconds", "Time to answer, waiting included.", "kind"
)
SUBSCRIPTIONS = _gauge("tidemill_subscriptions", "Open subscriptions.", "collection")
VIEW_GLOBAL_LAG = _gauge(
    "tidemill_view_global_lag_seconds",
    "Lag of the view behind the furthest of the sources and tables below it.",
    "view",
    "furthest",
)
ACTION_LAG = _gauge(
    "tidemill_action_lag_seconds",
    "Lag of the action behind the collection that it watches.",
    "action",
)
RESOURCE_READY = _gauge(
    "tidemill_resource_ready", "1 if the resource does its work, else 0.", "kind", "name"
)
RESOURCE_RETRIES = _counter(
    "tidemill_resource_retries_total",
    "Restarts of the resource's work because a store or a log was away.",
    "kind",
    "name",
)
BROKEN = _counter(
    "tidemill_broken_total",
    "Pieces of work that ended with an unforeseen error; each is tried again, and other work goes on.",
    "kind",
    "name",
)
COMPACTION_REFUSALS = _counter(
    "tidemill_compaction_refusals_total", "Looks at a collection that a store refused."
)
ANNOUNCEMENTS_PASSED_OVER = _counter(
    "tidemill_announcements_passed_over_total",
    "Records of the topic of commits that were no announcements: somebody else writes there.",
)
ORPHANS_DELETED = _counter(
    "tidemill_orphans_deleted_total", "Objects deleted that no version of a collection named."
)
SPARK_JOBS = _gauge(
    "tidemill_spark_jobs", "Bulk jobs of this process by what became of them last.", "kind", "state"
)
SPARK_RETRIES = _counter(
    "tidemill_spark_retries_total",
    "Retries of bulk jobs, by the cause of the failure.",
    "failure",
)
SPARK_EXECUTORS = _gauge(
    "tidemill_spark_executors", "Executors of the driver of windows, at its last heartbeat."
)

CLAIMS_HELD = _gauge(
    "tidemill_claims_held", "Pieces of work that this process has claimed.", "role"
)
CLAIMS_GAINED = _counter(
    "tidemill_claims_gained_total", "Pieces of work that were claimed.", "role"
)
CLAIMS_GIVEN_UP = _counter(
    "tidemill_claims_given_up_total", "Claims that were handed over or not wanted any more.", "role"
)
CLAIMS_LAPSED = _counter(
    "tidemill_claims_lapsed_total",
    "Claims that ended because others had heard nothing of this process for a lease.",
    "role",
)
CLAIM_TAKEOVERS = _counter(
    "tidemill_claim_takeovers_total",
    "Pieces of work taken over from processes that were gone.",
    "role",
)
CLAIM_TAKEOVER_SECONDS = _counter(
    "tidemill_claim_takeover_seconds_total",
    "Time from the last heartbeat of an owner until its work was taken over, as a sum.",
    "role",
)
REFUSALS = _counter(
    "tidemill_refusals_total",
    "Requests refused because a limit was reached, by the setting of the limit; they may be made again later.",
    "limit",
)
LOOP_LAG = _histogram(
    "tidemill_loop_lag_seconds",
    "Delay of the event loop before a due piece of work, sampled ten times a second.",
)

_OF_A_CALL = ("grpc_type", "grpc_service", "grpc_method")
GRPC_STARTED = _counter("grpc_server_started_total", "Calls that arrived.", *_OF_A_CALL)
GRPC_HANDLED = _counter(
    "grpc_server_handled_total", "Calls that ended, by status.", *_OF_A_CALL, "grpc_code"
)
GRPC_SENT = _counter("grpc_server_msg_sent_total", "Messages sent in streams.", *_OF_A_CALL)
GRPC_SECONDS = _histogram(
    "grpc_server_handling_seconds", "Time from a call to its end.", *_OF_A_CALL
)

CATALOGUE: tuple[Metric, ...] = tuple(
    sorted(
        (value for value in globals().values() if isinstance(value, Metric)),
        key=lambda metric: metric.name,
    )
)
"""Every metric that Tidemill exports."""

Reading: TypeAlias = tuple[Mapping[str, str], float]
"""The labels of a sample, and its value."""

_Family: TypeAlias = "GaugeMetricFamily | CounterMetricFamily"
_Sample: TypeAlias = tuple[Metric, Mapping[str, str], float]


@dataclass(frozen=True, slots=True)
class CollectionReading:
    """Readings of one collection; a frontier of None is not known yet, an empty one is closed."""

    collection: str
    timeline: str = SYSTEM_TIMELINE
    since: Frontier | None = None
    upper: Frontier | None = None
    batches: int | None = None
    updates: int | None = None
    bytes: int | None = None
    holders: tuple[str, ...] = field(default=())
    kind: str = ""
    resource: str = ""
    retain_ms: int | None = None


class Metrics:
    """Counts, measures and exposes; one for each process, handed to whoever counts."""

    def __init__(self, clock: Clock) -> None:
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self._clock = clock
        self._registry = CollectorRegistry()
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        self._watched = _Watched()
        for metric in CATALOGUE:
            if metric.kind is Kind.COUNTER:
                self._counters[metric.name] = Counter(
                    metric.name, metric.meaning, metric.labels, registry=self._registry
                )
            elif metric.kind is Kind.HISTOGRAM:
                self._histograms[metric.name] = Histogram(
                    metric.name, metric.meaning, metric.labels, registry=self._registry
                )
        self._registry.register(self._watched)
        self.watch(BROKEN, self._watched.broken)

    def increment(self, metric: Metric, by: float = 1, **labels: str) -> None:
        """Add `by` to a counter."""
        _check(metric, Kind.COUNTER, labels)
        counter = self._counters.get(metric.name)
        if counter is None:
            raise UsageError(f"{metric.name} is read at each scrape, not added to")
        (counter.labels(**labels) if labels else counter).inc(by)

    def observe(self, metric: Metric, seconds: float, **labels: str) -> None:
        """Add one measurement to a histogram."""
        _check(metric, Kind.HISTOGRAM, labels)
        histogram = self._histograms[metric.name]
        (histogram.labels(**labels) if labels else histogram).observe(seconds)

    @contextmanager
    def timed(self, metric: Metric, **labels: str) -> Iterator[None]:
        """Add the duration of the body, if it succeeds, to a histogram."""
        begun_s = self._clock.monotonic_s()
        yield
        self.observe(metric, self._clock.monotonic_s() - begun_s, **labels)

    def watch(self, metric: Metric, read: Callable[[], Iterable[Reading]]) -> Callable[[], None]:
        """Call `read` at every scrape for the samples of a gauge or counter; the answer ends that.

        Several callbacks may serve one name; where they give equal labels the last one counts. A
        callback must not wait. One that fails leaves its own samples out, and is counted as broken.
        A counter that is watched is not added to.
        """
        if metric.kind is Kind.HISTOGRAM:
            raise UsageError(f"{metric.name} is a histogram: it is measured, not read")
        if metric.kind is Kind.COUNTER and metric.name in self._counters:
            self._registry.unregister(self._counters.pop(metric.name))
        return self._watched.add(
            metric.name, lambda: [(metric, labels, value) for labels, value in read()]
        )

    def watch_collections(
        self, read: Callable[[], Iterable[CollectionReading]]
    ) -> Callable[[], None]:
        """Call `read` at every scrape for the frontiers and sizes of collections; the answer ends
        that."""
        return self._watched.add(
            "tidemill_collection", lambda: _collection_samples(list(read()), self._clock.now_ms())
        )

    def expose(self) -> tuple[bytes, str]:
        """All samples in the text format of Prometheus, and its content type."""
        return prometheus_client.generate_latest(
            self._registry
        ), prometheus_client.CONTENT_TYPE_LATEST


class _Watched(Collector):
    """Gauges and counters whose samples are asked for at each scrape."""

    def __init__(self) -> None:
        self._reads: list[tuple[str, Callable[[], Iterable[_Sample]]]] = []
        self._broken: Counted[str] = Counted()

    def add(self, name: str, read: Callable[[], Iterable[_Sample]]) -> Callable[[], None]:
        self._reads.append((name, read))
        return lambda: self._reads.remove((name, read)) if (name, read) in self._reads else None

    def broken(self) -> Iterable[Reading]:
        """Number of failed readings, by metric."""
        return [({"kind": "Metric", "name": name}, n) for name, n in self._broken.items()]

    def describe(self) -> Iterable[_Family]:
        return [_family(metric) for metric in CATALOGUE if metric.kind is Kind.GAUGE]

    def collect(self) -> Iterator[_Family]:
        found: dict[Metric, dict[tuple[str, ...], float]] = {}
        for name, read in list(self._reads):
            try:
                samples = list(read())
            except Exception as error:  # one reading: whoever scrapes gets the others
                self._broken[name] += 1
                log.error("not read", metric=name, error=told(error), exc_info=error)
                continue
            for metric, labels, value in samples:
                _check(metric, metric.kind, labels)
                values = tuple(labels[label] for label in metric.labels)
                found.setdefault(metric, {})[values] = value
        for metric, by_labels in found.items():
            family = _family(metric)
            for values, value in by_labels.items():
                family.add_metric(values, value)
            yield family


def _family(metric: Metric) -> _Family:
    kind = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
    return kind(metric.name, metric.meaning, labels=metric.labels)


def _check(metric: Metric, kind: Kind, labels: Mapping[str, str] | None) -> None:
    if metric.kind is not kind:
        raise UsageError(f"{metric.name} is a {metric.kind.value}, not a {kind.value}")
    if labels is not None and set(labels) != set(metric.labels):
        raise UsageError(
            f"{metric.name} has the labels {list(metric.labels)}, not {sorted(labels)}"
        )


def _instant(frontier: Frontier | None) -> int | None:
    """The time of a frontier; None if it is not known or closed."""
    return None if frontier is None or frontier.empty else sole_time(frontier)


def _collection_samples(readings: list[CollectionReading], now_ms: int) -> Iterator[_Sample]:
    hydrating = sum(reading.upper is None for reading in readings)
    yield COLLECTIONS_HYDRATING, {}, hydrating
    for reading in readings:
        labels = {"collection": reading.collection, "timeline": reading.timeline}
        since, upper = _instant(reading.since), _instant(reading.upper)
        numbers = {
            COLLECTION_SINCE: since,
            COLLECTION_UPPER: upper,
            COLLECTION_BATCHES: reading.batches,
            COLLECTION_UPDATES: reading.updates,
            COLLECTION_BYTES: reading.bytes,
        }
        described = {"kind": reading.kind, "resource": reading.resource}
        yield COLLECTION_INFO, {**labels, **described}, 1
        seconds: dict[Metric, float] = {}
        if reading.retain_ms is not None:
            seconds[COLLECTION_RETAIN] = reading.retain_ms / 1000
        if since is not None and upper is not None:
            seconds[COLLECTION_HISTORY] = max(0, upper - since) / 1000
        if reading.timeline == SYSTEM_TIMELINE:
            if since is not None:
                seconds[COLLECTION_SINCE_LAG] = (now_ms - since) / 1000
            if upper is not None:
                seconds[COLLECTION_UPPER_LAG] = (now_ms - upper) / 1000
        for metric, number in (*numbers.items(), *seconds.items()):
            if number is not None:
                yield metric, labels, number
        for holder, held in Counted(reading.holders).items():
            yield READ_HOLDS, {"collection": reading.collection, "holder": holder}, held
