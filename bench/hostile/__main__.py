"""Effects of a hostile user on a friendly one: times of its questions while the other does its
worst.

`python -m bench.hostile` starts `tidemill up` with two users, a source of 200,000 rows and a view
of it. The friend asks for single rows at a steady rate, half of them as of some seconds ago. Quiet
stretches and attacks take turns; the last attack is all of them at once. Friend, attacker and
server are processes of their own. The attacker runs at the lowest priority, since its own work is
none of the server's.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from bench.hostile.attacks import ATTACKS, HEAD, KEYS, NODES, Place, attack, befriend
from tidemill.client import Client
from tidemill.errors import TidemillError
from tidemill.rpc.messages import ResourceDocument
from tidemill.testkit.certificates import Certificates
from tidemill.testkit.up import up_process

RESULTS = Path(__file__).parent.parent / "results" / "hostile.json"
BEGIN_S = 25.0
"""Pause before the first question: views that have just read their history prepare indexes."""

SETTLE_S = 2.0
"""Seconds for calls that are under way when an attack ends."""

WORLD = f"""\
{HEAD}kind: Source
metadata: {{name: readings}}
spec: {{http: {{}}, columns: [{{name: k, type: int}}, {{name: v, type: float}}]}}
---
{HEAD}kind: View
metadata: {{name: current}}
spec: {{program: "now(k, v) := readings(k, v) if v >= 0.0;"}}
---
{HEAD}kind: Source
metadata: {{name: eve-source}}
spec: {{http: {{}}, columns: [{{name: n, type: int}}]}}
---
{HEAD}kind: Table
metadata: {{name: eve-edge}}
spec: {{columns: [{{name: a, type: int}}, {{name: b, type: int}}]}}
---
{HEAD}kind: View
metadata: {{name: eve-reach}}
spec:
  inputs: {{edge: eve-edge}}
  program: "path(x, y) := edge(x, y); path(x, z) := edge(x, y) ^ path(y, z);"
---
{HEAD}kind: View
metadata: {{name: eve-sums}}
spec: {{program: "total(g, s) := readings(k, v) where g = k % 100, s = k % 7;"}}
"""


@contextmanager
def served() -> Iterator[Place]:
    """A server with everything that is asked about."""
    with tempfile.TemporaryDirectory() as told:
        folder = Path(told)
        keys = folder / "keys"
        keys.mkdir()
        ours = Certificates.of(keys, "ours")
        pair = ours.issued("server")
        users = []
        grants = {"ann": ("reader", "*"), "eve": ("admin", "eve-*"), "root": ("admin", "*")}
        for who, (role, names) in grants.items():
            token = hashlib.sha256(f"token of {who}".encode()).hexdigest()
            (keys / f"{who}.token").write_text(token)
            given = [
                {"role": role, "collections": [names]},
                {"role": "reader", "collections": ["*"]},
            ]
            digest = hashlib.sha256(token.encode()).hexdigest()
            users.append({"name": who, "sha256": digest, "grants": given})
        (keys / "users.yaml").write_text(json.dumps({"users": users}))
        tls = {"certificate": str(pair.certificate), "key": str(pair.key)}
        settings = {"tls": tls, "http_tls": tls, "token_file": str(keys / "users.yaml")}
        (keys / "settings.yaml").write_text(json.dumps(settings))
        with up_process(folder, "--config", str(keys / "settings.yaml")) as server:
            place = Place(server.address("grpc"), server.address("http"), ours.authority, keys)
            with Client(place.grpc, dialer=place.dialer("root"), timeout_s=120.0) as client:
                _fill(client)
            yield place


def _fill(client: Client) -> None:
    client.apply(ResourceDocument(WORLD, "world.yaml"))
    edges = list(range(NODES - 1))
    client.insert("eve-edge", pa.table({"a": edges, "b": [n + 1 for n in edges]}))
    for first in range(0, KEYS, 20_000):
        client.push(
            "readings", [f'{{"k": {k}, "v": {k / 8}}}' for k in range(first, first + 20_000)]
        )
    _until(client, f"current/now({KEYS - 1}, v)")
    _until(client, f"eve-reach/path(0, {NODES - 1})")
    time.sleep(10.0)  # to where an instant eight seconds ago has all rows, and is compacted


def _until(client: Client, goal: str) -> None:
    end_s = time.monotonic() + 120
    while time.monotonic() < end_s:
        try:
            if client.query(goal).table.num_rows:
                return
        except TidemillError:
            pass
        time.sleep(0.2)
    raise SystemExit(f"{goal} does not come")


def _started(place: Place, *told: str) -> subprocess.Popen[str]:
    program = [sys.executable, "-m", "bench.hostile", *told, "--place", json.dumps(
        [place.grpc, place.http, str(place.authority), str(place.keys)]
    )]  # fmt: skip
    return subprocess.Popen(program, stdout=subprocess.PIPE, text=True)


def _friendly(place: Place, seconds: float, seed: int) -> dict[str, list[float]]:
    asked = _started(place, "--act", "friend", "--seconds", str(seconds), "--seed", str(seed))
    out, _ = asked.communicate()
    return dict(json.loads(out))


@dataclass
class Line:
    """Figures under one attack, round by round: percentiles, and quotients to those of quiet around
    it.
    """

    p50: list[float] = field(default_factory=list)
    p99: list[float] = field(default_factory=list)
    quiet: list[float] = field(default_factory=list)
    ratio: list[float] = field(default_factory=list)
    failed: int = 0
    ended: Counter[str] = field(default_factory=Counter)


def percentile(values: list[float], share: float) -> float:
    """The value below which this share of the values is."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _all(found: dict[str, list[float]]) -> list[float]:
    return [*found["point"], *found["asof"]]


def measured(place: Place, names: list[str], seconds: float, rounds: int) -> dict[str, Line]:
    """Every attack by itself between two quiet times, then all at once; so many rounds."""
    time.sleep(BEGIN_S)
    lines = {name: Line() for name in [*names, *(["all"] if len(names) > 1 else [])]}
    for number in range(rounds):
        before = _all(_friendly(place, seconds / 2, number))
        for name, line in lines.items():
            chosen = ",".join(names) if name == "all" else name
            hostile = _started(
                place, "--act", chosen, "--seconds", str(seconds + 4), "--seed", str(number)
            )
            time.sleep(2.0)
            under = _friendly(place, seconds, number)
            out, _ = hostile.communicate()
            time.sleep(SETTLE_S)
            after = _all(_friendly(place, seconds / 2, number))
            quiet = percentile(before + after, 0.99)
            took = _all(under)
            line.p50.append(percentile(took, 0.5))
            line.p99.append(percentile(took, 0.99))
            line.quiet.append(quiet)
            line.ratio.append(line.p99[-1] / quiet)
            line.failed += len(under["failed"])
            line.ended.update(json.loads(out))
            before = after
            print(
                f"# {name}: p50 {line.p50[-1]:.1f} p99 {line.p99[-1]:.1f} quiet {quiet:.1f} ms, "
                f"{line.ratio[-1]:.1f} times, load {os.getloadavg()[0]:.1f}, {json.loads(out)}",
                flush=True,
            )
    return lines


def table(lines: dict[str, Line]) -> Iterator[str]:
    """The lines as the page on performance has them."""
    yield "| attack | p50 | p99 | quiet p99 | times | the friend failed | the attacker got |"
    yield "|---|---|---|---|---|---|---|"
    for name, line in lines.items():
        p50, p99, quiet, ratio = map(
            statistics.median, (line.p50, line.p99, line.quiet, line.ratio)
        )
        got = ", ".join(f"{n:,} {code}" for code, n in line.ended.most_common())
        yield (
            f"| {name} | {p50:.1f} ms | {p99:.1f} ms | {quiet:.1f} ms | {ratio:.1f} | "
            f"{line.failed} | {got} |"
        )


def main() -> None:
    """Measure and print; or be the friend, or the attacker."""
    parser = argparse.ArgumentParser(prog="python -m bench.hostile", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=list(ATTACKS), default=list(ATTACKS))
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--keep", action="store_true", help=f"write {RESULTS}")
    for hidden in ("--act", "--place"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.act:
        grpc, http, authority, keys = json.loads(chosen.place)
        place = Place(grpc, http, Path(authority), Path(keys))
        if chosen.act == "friend":
            found: object = asyncio.run(befriend(place, chosen.seconds, chosen.seed))
        else:
            os.nice(19)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            names = chosen.act.split(",")
            found = asyncio.run(attack(place, names, chosen.seconds, chosen.seed))
        print(json.dumps(found))
        return
    with served() as place:
        lines = measured(place, chosen.only, chosen.seconds, chosen.rounds)
    print("\n".join(table(lines)))
    if chosen.keep:
        kept = {name: {**vars(line), "ended": dict(line.ended)} for name, line in lines.items()}
        RESULTS.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
