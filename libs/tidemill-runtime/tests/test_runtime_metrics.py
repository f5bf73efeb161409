"""Metrics are exact at the moment of the scrape."""

from __future__ import annotations

import re

import pytest

from tidemill.errors import UsageError
from tidemill.runtime.clock import ManualClock
from tidemill.runtime.metrics import (
    CATALOGUE,
    COLLECTIONS_HYDRATING,
    DECODE_ERRORS,
    RECLOCK_DURATION,
    RESOURCE_READY,
    SOURCE_OFFSET_KNOWN,
    SUBSCRIPTIONS,
    CollectionReading,
    Kind,
    Metrics,
    Reading,
)
from tidemill.time.antichain import frontier

AT_REST = {
    "tidemill_announcements_passed_over_total": 0.0,
    "tidemill_compaction_refusals_total": 0.0,
    "tidemill_loop_lag_seconds_count": 0.0,
    "tidemill_loop_lag_seconds_sum": 0.0,
    "tidemill_orphans_deleted_total": 0.0,
}
"""Counters and histograms without labels are there from the beginning."""


def samples(metrics: Metrics) -> dict[str, float]:
    """Every sample line, without comments and buckets."""
    text = metrics.expose()[0].decode()
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines if "_bucket" not in name}


def test_lag_grows_while_nothing_moves() -> None:
    clock = ManualClock(10_000)
    metrics = Metrics(clock)
    reading = CollectionReading("flights", since=frontier(4_000), upper=frontier(9_000))
    metrics.watch_collections(lambda: [reading])
    lag = 'tidemill_collection_upper_lag_seconds{collection="flights",timeline="system"}'
    assert samples(metrics)[lag] == 1.0
    clock.move(30)
    assert samples(metrics)[lag] == 31.0
    assert samples(metrics)[lag.replace("upper", "since")] == 36.0


def test_a_collection_without_frontier_has_no_lag_and_counts_as_hydrating() -> None:
    metrics = Metrics(ManualClock(10_000))
    metrics.watch_collections(
        lambda: [
            CollectionReading("new"),
            CollectionReading("closed", since=frontier(), upper=frontier()),
            CollectionReading(
                "air",
                "air",
                frontier(0),
                frontier(5_000),
                2,
                30,
                999,
                ("s", "s"),
                "view",
                "View/air",
                500,
            ),
        ]
    )
    info = "tidemill_collection_info"
    assert samples(metrics) == AT_REST | {
        "tidemill_collections_hydrating": 1,
        f'{info}{{collection="new",kind="",resource="",timeline="system"}}': 1,
        f'{info}{{collection="closed",kind="",resource="",timeline="system"}}': 1,
        f'{info}{{collection="air",kind="view",resource="View/air",timeline="air"}}': 1,
        'tidemill_collection_retain_seconds{collection="air",timeline="air"}': 0.5,
        'tidemill_collection_since{collection="air",timeline="air"}': 0,
        'tidemill_collection_upper{collection="air",timeline="air"}': 5_000,
        'tidemill_collection_history_seconds{collection="air",timeline="air"}': 5,
        'tidemill_arrangement_batches{collection="air",timeline="air"}': 2,
        'tidemill_arrangement_updates{collection="air",timeline="air"}': 30,
        'tidemill_arrangement_bytes{collection="air",timeline="air"}': 999,
        'tidemill_read_holds{collection="air",holder="s"}': 2,
    }


def test_counters_histograms_and_watched_gauges_are_exposed() -> None:
    clock = ManualClock()
    metrics = Metrics(clock)
    metrics.increment(DECODE_ERRORS, source="flights")
    metrics.increment(DECODE_ERRORS, 2, source="flights")
    with metrics.timed(RECLOCK_DURATION, source="flights"):
        clock.move(0.5)
    known = {0: 17, 1: 4}
    unwatch = metrics.watch(
        SOURCE_OFFSET_KNOWN,
        lambda: [({"source": "flights", "partition": str(p)}, at) for p, at in known.items()],
    )
    known[0] = 18
    assert samples(metrics) == AT_REST | {
        'tidemill_decode_errors_total{source="flights"}': 3,
        'tidemill_reclock_duration_seconds_count{source="flights"}': 1,
        'tidemill_reclock_duration_seconds_sum{source="flights"}': 0.5,
        'tidemill_source_offset_known{partition="0",source="flights"}': 18,
        'tidemill_source_offset_known{partition="1",source="flights"}': 4,
    }
    unwatch()
    unwatch()
    assert not any("offset_known" in name for name in samples(metrics))


def test_a_reading_that_fails_is_counted_and_the_others_are_exposed() -> None:
    metrics = Metrics(ManualClock(1_000))

    def fails() -> list[Reading]:
        raise IndexError("S3CR3T")

    metrics.watch(RESOURCE_READY, fails)
    metrics.watch_collections(lambda: [{}["collection"]])  # type: ignore[misc]
    metrics.watch(COLLECTIONS_HYDRATING, lambda: [({}, 3)])
    metrics.expose()
    text = metrics.expose()[0].decode()
    assert "tidemill_collections_hydrating 3.0" in text
    assert 'tidemill_broken_total{kind="Metric",name="tidemill_resource_ready"} 1.0' in text
    assert 'tidemill_broken_total{kind="Metric",name="tidemill_collection"} 1.0' in text
    assert "S3CR3T" not in text


def test_a_wrong_use_is_refused() -> None:
    metrics = Metrics(ManualClock())
    with pytest.raises(UsageError, match="is a counter, not a histogram"):
        metrics.observe(DECODE_ERRORS, 1.0, source="flights")
    with pytest.raises(UsageError, match=r"has the labels \['source'\], not \['view'\]"):
        metrics.increment(DECODE_ERRORS, view="v")
    metrics.watch(SUBSCRIPTIONS, lambda: [({"view": "v"}, 1.0)])
    with pytest.raises(UsageError, match=r"has the labels \['collection'\]"):
        metrics.expose()


def test_names_follow_the_conventions() -> None:
    assert len({metric.name for metric in CATALOGUE}) == len(CATALOGUE) > 30
    for metric in CATALOGUE:
        assert re.fullmatch(r"(tidemill|grpc_server)(_[a-z]+)+", metric.name)
        assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER)
        assert metric.meaning.endswith(".")


def test_two_processes_in_one_interpreter_count_apart() -> None:
    one, two = Metrics(ManualClock()), Metrics(ManualClock())
    one.increment(DECODE_ERRORS, source="flights")
    assert samples(two) == AT_REST
