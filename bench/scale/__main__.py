"""Many sources or tables at rest: their cost, and the time for applying more of them. Or many
updates.

`python -m bench.scale` starts `tidemill up` on a folder of its own, applies as many http sources
(with `--tables`: tables) as asked for, and waits until they rest. Then it reads from outside the
costs of the process: seconds of the processor, resident memory, versions that the store gained. At
the end some more are applied, and timed.

With `--updates` one collection of so many updates is made, merged, asked for keys and scanned, as
`bench.scale.updates` says.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.scale import updates
from tidemill.client import Client
from tidemill.errors import TidemillError
from tidemill.rpc.messages import ResourceDocument

RESULTS = Path(__file__).parent.parent / "results" / "scale.json"
START_S_MAX = 600.0
PAGE = os.sysconf("SC_PAGE_SIZE")
TICKS = os.sysconf("SC_CLK_TCK")

SOURCE = """\
apiVersion: tidemill.dev/v1alpha1
kind: Source
metadata: {{name: {name}}}
spec:
  columns: [{{name: n, type: int}}]
  http: {{}}
"""

TABLE = """\
apiVersion: tidemill.dev/v1alpha1
kind: Table
metadata: {{name: {name}}}
spec: {{columns: [{{name: n, type: int}}]}}
"""

VIEW = """\
apiVersion: tidemill.dev/v1alpha1
kind: View
metadata: {{name: v{name}}}
spec: {{program: "both(n) := s{first}(n) ^ s{second}(n);"}}
"""


class Server:
    """One `tidemill up` in a folder, read from outside."""

    def __init__(self, folder: Path, profile: Path | None) -> None:
        self._state = folder / "state"
        program = ["-m", "tidemill.client", "up", "--dir", "state", "--grpc", "127.0.0.1:0"]
        if profile is not None:
            program = ["-m", "cProfile", "-o", str(profile), *program]
        with (folder / "server.log").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, *program, "--http-port", "0"], cwd=folder, stdout=log, stderr=log
            )

    def address(self) -> str:
        """Its address, once it listens."""
        told = self._state / "grpc.address"
        end_s = time.monotonic() + START_S_MAX
        while not told.exists() or not told.read_text().endswith("\n"):
            if self.process.poll() is not None or time.monotonic() > end_s:
                raise SystemExit("tidemill up does not start: see server.log")
            time.sleep(0.05)
        return told.read_text().strip()

    def processor_s(self) -> float:
        """Seconds of the processor that it has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def resident_mb(self) -> float:
        """Its resident memory."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * PAGE / 1e6

    def descriptors(self) -> int:
        """Number of its open files."""
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def threads(self) -> int:
        """Number of its threads."""
        return len(list(Path(f"/proc/{self.process.pid}/task").iterdir()))

    def versions(self) -> int:
        """Number of versions that were ever written: the newest number of every collection, added
        up.
        """
        file = sqlite3.connect(f"file:{self._state / 'consensus.sqlite'}?mode=ro", uri=True)
        try:
            found = file.execute("select max(number) + 1 from versions group by key").fetchall()
        finally:
            file.close()
        return sum(number for (number,) in found)


@contextmanager
def served(profile: Path | None) -> Iterator[tuple[Server, Client]]:
    """A server on a folder of its own with a client, gone at the end."""
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder), profile)
        try:
            with Client(server.address()) as client:
                yield server, client
        finally:
            server.process.send_signal(signal.SIGINT)
            try:
                server.process.wait(120)
            except subprocess.TimeoutExpired:
                server.process.kill()


def applied_s(client: Client, document: str, first: int, count: int) -> float:
    """Seconds for applying so many more sources."""
    text = "---\n".join(document.format(name=f"s{n}") for n in range(first, first + count))
    began_s = time.perf_counter()
    while True:
        try:
            client.apply(ResourceDocument(text, "sources.yaml"))
        except TidemillError as error:
            print(f"# apply again: {error}", flush=True)
            continue
        return time.perf_counter() - began_s


def apply_views(client: Client, views: int, sources: int) -> None:
    """Apply so many views, each of two sources."""
    each = (
        VIEW.format(name=n, first=n * 5 % sources, second=(n * 5 + 1) % sources)
        for n in range(views)
    )
    client.apply(ResourceDocument("---\n".join(each), "views.yaml"))


def measured(
    server: Server, client: Client, document: str, sources: int, views: int, more: int,
    settle_s: float, rest_s: float,
) -> dict[str, float]:  # fmt: skip
    """The figures of so many sources and views at rest, and of applying more sources."""
    batch = 50
    for first in range(0, sources, batch):
        took_s = applied_s(client, document, first, min(batch, sources - first))
        print(f"# {first + batch} sources: the last {batch} took {took_s:.1f} s", flush=True)
    if views and sources:
        apply_views(client, views, sources)
    time.sleep(settle_s)
    began_s, used_s, versions = time.perf_counter(), server.processor_s(), server.versions()
    time.sleep(rest_s)
    passed_s = time.perf_counter() - began_s
    figures = {
        "sources": sources,
        "views": views,
        "commits_per_s": (server.versions() - versions) / passed_s,
        "cores": (server.processor_s() - used_s) / passed_s,
        "resident_mb": server.resident_mb(),
        "descriptors": server.descriptors(),
        "threads": server.threads(),
    }
    used_s = server.processor_s()
    took_s = applied_s(client, document, sources, more)
    return {
        **figures,
        f"apply_{more}_more_s": took_s,
        f"apply_{more}_more_processor_s": server.processor_s() - used_s,
    }


def main() -> None:
    """Measure, print, and keep the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description=__doc__)
    parser.add_argument("--sources", type=int, nargs="+", default=[0, 100, 1000])
    parser.add_argument("--views", type=int, default=0, help="views, each of two sources")
    parser.add_argument("--tables", action="store_true", help="tables in place of sources")
    parser.add_argument("--more", type=int, default=50)
    parser.add_argument(
        "--rest", type=float, default=30.0, help="seconds of rest that are measured"
    )
    parser.add_argument("--settle", type=float, default=30.0, help="seconds before that")
    parser.add_argument("--profile", type=Path, help="where the server writes its profile")
    parser.add_argument("--keep", action="store_true", help=f"write {RESULTS}")
    parser.add_argument("--updates", type=int, help="updates of one collection, in place of these")
    chosen = parser.parse_args()
    if chosen.updates:
        figures = asyncio.run(updates.run(chosen.updates, say=lambda text: print(f"# {text}")))
        print(updates.shown(figures), flush=True)
        return
    document = TABLE if chosen.tables else SOURCE
    kept = []
    for sources in chosen.sources:
        with served(chosen.profile) as (server, client):
            figures = measured(
                server, client, document, sources, chosen.views, chosen.more, chosen.settle,
                chosen.rest,
            )  # fmt: skip
        kept.append({name: round(value, 3) for name, value in figures.items()})
        print(json.dumps(kept[-1]), flush=True)
    if chosen.keep:
        RESULTS.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
