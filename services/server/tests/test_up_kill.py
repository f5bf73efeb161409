"""SIGKILL a whole server again and again while rows are pushed; then every answer must be right."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from random import Random

from tidemill.client import Client
from tidemill.errors import TidemillError
from tidemill.testkit.up import UpProcess, up_process
from tidemill.time import sole_time

HOUR = 3_600_000
SKEW = 10_000
LAST = 2_000_000

RESOURCES = """
apiVersion: tidemill.dev/v1alpha1
kind: Source
metadata: {name: flights}
spec:
  http: {}
  format: {json: {}}
  columns: [{name: plane, type: text}, {name: delay, type: int}, {name: at, type: int}]
  timestampInterval: 100ms
  retain: all
  eventTime: {column: at, timeline: air, expiresAfter: 2m, skew: 10s}
---
apiVersion: tidemill.dev/v1alpha1
kind: Table
metadata: {name: vip}
spec: {timeline: air, retain: all, columns: [{name: plane, type: text}]}
---
apiVersion: tidemill.dev/v1alpha1
kind: View
metadata: {name: delays}
spec:
  retain: all
  program: |
    late(p, d) := flight(p, d, _) if d > 30;
    alarm(p, d) := late(p, d) ^ vip(p);
    grounded(p) := vip(p) ^ not flight(p, _, _);
    load(p) @count(d) := flight(p, d, _) ^ vip(p);
  inputs: {flight: flights}
---
apiVersion: tidemill.dev/v1alpha1
kind: Action
metadata: {name: tell}
spec: {view: delays, goal: "alarm(p, d)", fireFrom: beginning, sink: {file: {path: alarms.jsonl}}}
"""

VIPS = ("N1", "N2", "N3")


def flights(random: Random, count: int) -> list[tuple[str, int, int]]:
    """(plane, delay, time): out of order, but none as late as the skew."""
    found = []
    for n in range(count):
        at = SKEW + n * (LAST // count) + random.randrange(-SKEW // 2, SKEW // 2)
        found.append((f"N{random.randrange(6)}", random.randrange(60), at))
    return found


def push(server: UpProcess, rows: list[tuple[str, int, int]]) -> None:
    """Push until it is acknowledged; what arrives twice is one event."""
    lines = [json.dumps({"plane": p, "delay": d, "at": at}) for p, d, at in rows]
    server.until(lambda client: client.push("flights", lines))


def rows_at(client: Client, goal: str, at: int) -> list[tuple[object, ...]]:
    table = client.query(goal, as_of=at, timeout_s=120).table
    names = [name for name in table.column_names if name not in ("time", "expires")]
    return sorted(tuple(row[name] for name in names) for row in table.to_pylist())


def test_a_server_killed_at_random_moments_answers_as_if_it_had_lived(tmp_path: Path) -> None:
    random = Random(7)
    (tmp_path / "resources.yaml").write_text(RESOURCES)
    sent = flights(random, 300)
    with up_process(tmp_path, "-f", "resources.yaml") as server:
        server.until(lambda client: client.insert("vip", [{"plane": vip} for vip in VIPS]))
        for begin in range(0, len(sent), 50):
            push(server, sent[begin : begin + 25])
            time.sleep(random.random() * 0.7)
            server.stop(signal.SIGKILL)
            server.start()
            push(server, sent[begin + 25 : begin + 50])
        # Rows that move the frontier of every partition past the end.
        end = LAST + HOUR
        push(server, [("end", 0, end + n) for n in range(40)])
        upper = end - SKEW
        server.until(lambda client: _reached(client, upper))
        with server.client() as client:
            check(client, sent, random)
        lines = server.until(lambda _: _lines(tmp_path, len(expected_alarms(sent))))
        assert sorted(lines) == expected_alarms(sent)
        assert server.stop(signal.SIGTERM) == 0


def _reached(client: Client, upper: int) -> bool | None:
    (status,) = client.get("View", "delays")
    assert status.reason != "Stalled", status.message
    held = status.upper
    return True if held is not None and not held.empty and sole_time(held) >= upper else None


def _lines(folder: Path, count: int) -> list[tuple[object, ...]] | None:
    file = folder / "alarms.jsonl"
    found = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    if len(found) < count:
        return None
    return [(*line["arguments"], line["time"]) for line in found]


def expected_alarms(sent: list[tuple[str, int, int]]) -> list[tuple[object, ...]]:
    return sorted({(p, d, at) for p, d, at in sent if d > 30 and p in VIPS})


def check(client: Client, sent: list[tuple[str, int, int]], random: Random) -> None:
    """Snapshots at instants of the whole run against a recomputation from what was sent."""
    for at in [0, SKEW, *random.sample(range(LAST), 6)]:
        present = {(p, d, t) for p, d, t in sent if t <= at < t + 120_000}
        assert rows_at(client, "flights", at) == sorted(present)
        late = sorted((p, d) for p, d, _ in present if d > 30)
        assert rows_at(client, "delays/late(p, d)", at) == late
        flying = {p for p, _, _ in present}
        assert rows_at(client, "delays/grounded(p)", at) == [(p,) for p in VIPS if p not in flying]
        counts = sorted((p, sum(q == p for q, _, _ in present)) for p in VIPS if p in flying)
        assert rows_at(client, "delays/load(p) @count(n)", at) == counts


def test_a_second_server_on_the_same_directory_is_refused_in_one_line(tmp_path: Path) -> None:
    with up_process(tmp_path) as first:
        first.until(lambda client: client.get() is not None or None)
        second = UpProcess(tmp_path)
        second.log = tmp_path / "second.log"
        address = (tmp_path / "state" / "grpc.address").read_text()
        second.start()
        (tmp_path / "state" / "grpc.address").write_text(address)
        assert second.ended() != 0
        lines = second.log.read_text().strip().splitlines()
        assert len(lines) == 1, lines
        assert "tidemill up:" in lines[0]
        with first.client() as client:
            assert list(client.get()) == []


def test_a_server_says_what_is_wrong_with_a_program_where_it_is(tmp_path: Path) -> None:
    with up_process(tmp_path) as server:
        file = tmp_path / "bad.yaml"
        file.write_text(RESOURCES.replace("not flight(p, _, _)", "not plane(p)"))
        server.until(lambda client: client.get() is not None or None)
        with server.client() as client:
            try:
                client.apply(file)
            except TidemillError as error:
                text = str(error)
            else:
                raise AssertionError("the program was accepted")
            assert list(client.get()) == []
        assert "bad.yaml" in text
        assert "S124" in text
        assert "plane" in text
