"""The surface of a running server on its two ports: every service, every metric."""

from __future__ import annotations

import re
import signal
import urllib.request
from pathlib import Path

import pyarrow as pa

from tidemill.client import Client
from tidemill.rpc import call_metrics
from tidemill.rpc.client import AsyncClient
from tidemill.rpc.messages import Appended, Changes, CollectionShape
from tidemill.runtime.metrics import CATALOGUE, Kind
from tidemill.shard.stages import STAGES
from tidemill.testkit.up import UpProcess, up_process
from tidemill.time import frontier, sole_time

RESOURCES = """
apiVersion: tidemill.dev/v1alpha1
kind: Source
metadata: {name: flights}
spec:
  http: {}
  columns: [{name: plane, type: text}, {name: delay, type: int}, {name: at, type: int}]
  timestampInterval: 50ms
  retain: all
  eventTime: {column: at, timeline: air, expiresAfter: 1h, skew: 0s}
---
apiVersion: tidemill.dev/v1alpha1
kind: View
metadata: {name: delays}
spec:
  retain: all
  inputs: {flight: flights}
  program: "late(p, d) := flight(p, d, _) if d > 30;"
---
apiVersion: tidemill.dev/v1alpha1
kind: Action
metadata: {name: tell}
spec: {view: delays, goal: "late(p, d)", fireFrom: beginning, sink: {file: {path: late.jsonl}}}
"""

QUIET = {
    "tidemill_store_not_durable", "tidemill_insecure", "tidemill_view_range_upper",
    "tidemill_view_range_rows",
}  # fmt: skip
"""Names that have a sample only while a store is at fault, a port open, or a view has ranges."""


STAGED = tuple(f'tidemill_stage_rows_total{{stage="{stage}"}} 0.0' for stage in STAGES)
"""Samples of stages that nothing has come to."""
COUNTED = (
    'tidemill_decode_errors_total{source="flights"} 1.0',
    'tidemill_actions_fired_total{action="tell"} 1.0',
    'tidemill_late_events_total{source="flights"} 1.0',
    'tidemill_event_time_moves_total{mover="silence",source="flights"} 0.0',
    'tidemill_subscriptions{collection="late"} 0.0',
    'tidemill_refusals_total{limit="limits.calls_per_s"} 0.0',
    'grpc_code="OK",grpc_method="Subscribe",grpc_service="tidemill.query.v1.QueryService"',
)


def scraped(server: UpProcess) -> str:
    found = re.search(r"address=(http://\S+/metrics)", server.log.read_text())
    assert found is not None, server.log.read_text()
    with urllib.request.urlopen(found[1]) as answer:
        return str(answer.read(), "utf-8")


def definite(client: Client) -> bool | None:
    held = client.query("late(p, d)").upper
    return True if not held.empty and sole_time(held) >= 9_000 else None


def test_every_metric_of_the_catalogue_has_a_sample(tmp_path: Path) -> None:
    (tmp_path / "all.yaml").write_text(RESOURCES)
    lines = ['{"plane":"N1","delay":45,"at":2000}', "no row", '{"plane":"N2","delay":5,"at":9000}']
    with up_process(tmp_path, "-f", "all.yaml") as server:
        server.until(lambda client: client.push("flights", lines))
        server.until(definite)
        # Late, after the frontier has come to 9000.
        server.until(lambda client: client.push("flights", ['{"plane":"N3","delay":1,"at":5}']))
        with server.client() as client:
            list(client.subscribe("late(p, d)", start=0, until=5_000))
        wanted = {metric.name for metric in CATALOGUE} - QUIET
        server.until(lambda _: True if not missing(scraped(server), wanted) else None)
        server.until(lambda _: True if all(line in scraped(server) for line in COUNTED) else None)
        text = scraped(server)
        idle = {stage for stage, line in zip(STAGES, STAGED, strict=True) if line in text}
        assert idle <= {"write", "read"}, "small appends stay in the log; all else has had rows"


def missing(text: str, wanted: set[str]) -> set[str]:
    found = {line.split("{")[0].split(" ")[0] for line in text.splitlines() if line[:1] != "#"}
    return {name for name in wanted if not found & {name, f"{name}_count"}}


def test_the_calls_are_counted_under_the_names_that_the_catalogue_has() -> None:
    known = {metric.name: metric for metric in CATALOGUE}
    for names, kind in (
        (call_metrics.COUNTERS, Kind.COUNTER),
        (call_metrics.HISTOGRAMS, Kind.HISTOGRAM),
    ):
        for name, labels in names.items():
            assert known[name].kind is kind
            assert known[name].labels == labels


async def test_the_storage_commands_are_served_and_survive_a_restart(tmp_path: Path) -> None:
    shape = CollectionShape(pa.schema([("n", pa.int64())]), user_writable=True)
    rows = pa.table(
        {
            "n": pa.array([1, 2], pa.int64()),
            "_time": pa.array([3, 3], pa.uint64()),
            "_diff": pa.array([1, 1], pa.int64()),
        }
    )
    with up_process(tmp_path) as server:
        with server.client():
            address = (tmp_path / "state" / "grpc.address").read_text().strip()
        async with AsyncClient(address) as client:
            pair = await client.storage.create("mine", shape, owner="me")
            assert pair.write is not None
            outcome = await client.storage.update_and_downgrade(pair.write, rows, frontier(5))
            assert outcome == Appended(frontier(5))
        server.stop(signal.SIGKILL)
        server.start()
        with server.client():
            address = (tmp_path / "state" / "grpc.address").read_text().strip()
        async with AsyncClient(address) as client:
            found = [
                event.table
                async for event in client.storage.subscribe_at(pair.read, 4, up_to=5)
                if isinstance(event, Changes)
            ]
    assert sorted(pa.concat_tables(found)["n"].to_pylist()) == [1, 2]
