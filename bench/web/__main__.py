"""HTTP under load: questions for one key, followers over restarts, the console in a browser.

`python -m bench.web` starts `tidemill up` on a folder of its own for each workload. This process
asks it over loopback. A follower counts every row of its events: a missed or repeated row fails the
run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import pyarrow as pa
from playwright.async_api import Route, async_playwright

from bench.shard.figures import quantiles
from tidemill.client import Client
from tidemill.errors import TidemillError
from tidemill.rpc.messages import ResourceDocument

PORT, GRPC = 17475, 17474
START_S_MAX = 300.0
HEAD = "apiVersion: tidemill.dev/v1alpha1\n"
ROWS_OF_INSERT = 1_000_000
FRAMES_MS = 6_000
"""Milliseconds for which frames are counted."""

KEYED = f"""{HEAD}kind: Table
metadata: {{name: readings}}
spec: {{columns: [{{name: k, type: int}}, {{name: v, type: int}}], retain: all}}
---
{HEAD}kind: Arrangement
metadata: {{name: by-k}}
spec: {{collection: readings, key: [k]}}
"""
FOLLOWED = f"""{HEAD}kind: Table
metadata: {{name: numbers}}
spec: {{columns: [{{name: n, type: int}}], retain: all}}
---
{HEAD}kind: View
metadata: {{name: kept}}
spec: {{retain: all, program: "kept(n: n) := numbers(n) if n >= 0;"}}
"""


class Server:
    """One `tidemill up` at fixed ports, which is killed and started again."""

    def __init__(self, folder: Path, connections: int) -> None:
        self._folder = folder
        names = ("http_connections", "subscriptions", "subscriptions_per_user")
        limits = "".join(f"{name} = {connections}\n" for name in names)
        (folder / "up.toml").write_text(f"[limits]\n{limits}")
        self.http = f"http://127.0.0.1:{PORT}"
        self.start()

    def start(self) -> None:
        """Start the process; returns once it is ready."""
        words = ["-m", "tidemill.client", "up", "--dir", "state", "--config", "up.toml"]
        ports = ["--grpc", f"127.0.0.1:{GRPC}", "--http-port", str(PORT)]
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, *words, *ports], cwd=self._folder, stdout=log, stderr=log
            )
        end_s = time.monotonic() + START_S_MAX
        while True:
            try:
                with Client(f"127.0.0.1:{GRPC}") as client:
                    client.get()
                return
            except TidemillError:
                if self._process.poll() is not None or time.monotonic() > end_s:
                    log_text = (self._folder / "server.log").read_text()
                    raise SystemExit(f"tidemill up does not start:\n{log_text[-2000:]}") from None
                time.sleep(0.1)

    def kill(self) -> None:
        """End it without warning."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()


@contextmanager
def server(document: str, connections: int = 1_000) -> Iterator[Server]:
    """A server with resources applied, gone at the end."""
    with tempfile.TemporaryDirectory() as folder:
        started = Server(Path(folder), connections)
        try:
            if document:
                with Client(f"127.0.0.1:{GRPC}", timeout_s=300) as client:
                    client.apply(ResourceDocument(document, "bench.yaml"))
            yield started
        finally:
            started.kill()


async def keys(rows: int, rate: float, seconds: float) -> dict[str, Any]:
    """Times of questions for the rows of one key, as of an instant, at a steady rate."""
    with server(KEYED) as asked:
        with Client(f"127.0.0.1:{GRPC}", timeout_s=300) as client:
            for start in range(0, rows, ROWS_OF_INSERT):
                numbers = range(start, min(start + ROWS_OF_INSERT, rows))
                column = pa.array(numbers, pa.int64())
                at = client.insert("readings", pa.table({"k": column, "v": column})).time
        random, took = Random(1), []
        async with aiohttp.ClientSession() as session:
            where = f"{asked.http}/v1/collections/readings?as_of={at}&wait_s=300&where=k=="

            async def ask() -> None:
                begun_s = time.monotonic()
                async with session.get(f"{where}{random.randrange(rows)}") as answer:
                    found = json.loads(await answer.read())
                if len(found["rows"]) != 1:
                    raise SystemExit(f"no single row: {str(found)[:500]}")
                took.append((time.monotonic() - begun_s) * 1000)

            await ask()
            first_ms = took.pop()
            asking: set[asyncio.Task[None]] = set()
            begun_s = time.monotonic()
            for number in range(int(rate * seconds)):
                await asyncio.sleep(max(0.0, begun_s + number / rate - time.monotonic()))
                asking.add(asyncio.create_task(ask()))
            await asyncio.gather(*asking)
        return {
            "rows": rows, "rate": rate, "asked": len(took), "first_ms": round(first_ms, 1),
            "p50_ms": round(quantiles(took)[0], 1), "p99_ms": round(quantiles(took)[1], 1),
        }  # fmt: skip


class Follower:
    """One follower as a browser is: it connects again with the id of its last whole event."""

    def __init__(self, wanted: int, address: str) -> None:
        self._wanted = wanted
        self._address = address
        self.rows = 0
        self.again = 0

    async def run(self, session: aiohttp.ClientSession) -> None:
        """Return once all rows have come, or one too many."""
        last = ""
        while self.rows < self._wanted:
            headers = {"Last-Event-ID": last} if last else {}
            url = f"{self._address}/v1/subscribe?goal=kept(n)&snapshot=true"
            try:
                async with session.get(url, headers=headers) as answer:
                    rest = b""
                    async for piece in answer.content.iter_any():
                        *whole, rest = (rest + piece).split(b"\n\n")
                        for event in whole:
                            self.rows += event.count(b'"_diff":1')
                            head = event.partition(b"\n")[0]
                            last = head[4:].decode() if head.startswith(b"id: ") else last
                        if self.rows >= self._wanted:
                            return
            except (aiohttp.ClientError, OSError):
                pass
            self.again += 1
            await asyncio.sleep(0.5)


async def followers(count: int, rate: int, seconds: int, kills: int) -> dict[str, Any]:
    """Rows of each follower of one view, while rows come and the server is killed."""
    wanted = rate * seconds
    with server(FOLLOWED, connections=count * 2 + 100) as asked:
        everybody = [Follower(wanted, asked.http) for _ in range(count)]
        connector = aiohttp.TCPConnector(limit=0)
        whole = aiohttp.ClientTimeout(total=None)
        begun_s = time.monotonic()
        async with aiohttp.ClientSession(connector=connector, timeout=whole) as session:
            following = [asyncio.create_task(each.run(session)) for each in everybody]
            sent = await asyncio.to_thread(_insert, asked, rate, seconds, kills)
            await asyncio.wait_for(asyncio.gather(*following), 300)
        found = {each.rows for each in everybody}
        if found != {sent}:
            raise SystemExit(f"followers have {found} rows of {sent}")
        return {
            "followers": count, "rows": sent, "rate": rate, "kills": kills,
            "again": sum(each.again for each in everybody),
            "seconds": round(time.monotonic() - begun_s, 1),
        }  # fmt: skip


def _insert(asked: Server, rate: int, seconds: int, kills: int) -> int:
    """Insert rows ten times a second; the server is killed between two inserts."""
    pieces = seconds * 10
    dead = {pieces * (number + 1) // (kills + 1) for number in range(kills)}
    begun_s, away_s, sent = time.monotonic(), 0.0, 0
    for piece in range(pieces):
        time.sleep(max(0.0, begun_s + away_s + piece / 10 - time.monotonic()))
        if piece in dead:
            killed_s = time.monotonic()
            asked.kill()
            asked.start()
            away_s += time.monotonic() - killed_s
        numbers = pa.array(range(sent, sent + rate // 10), pa.int64())
        with Client(f"127.0.0.1:{GRPC}") as client:
            client.insert("numbers", pa.table({"n": numbers}))
        sent += rate // 10
    return sent


def _resources(count: int) -> str:
    """Ten tables, and views that each read the resource ten numbers before."""
    tables = [
        f"{HEAD}kind: Table\nmetadata: {{name: r{n:04}}}\n"
        "spec: {columns: [{name: n, type: int}], retain: 1h}\n"
        for n in range(10)
    ]
    views = [
        f"{HEAD}kind: View\nmetadata: {{name: r{n:04}}}\n"
        f'spec: {{program: "o{n:04}(n: n) := i(n) if n >= 0;", '
        f"inputs: {{i: r{n - 10:04}{f'/o{n - 10:04}' if n >= 20 else ''}}}}}\n"
        for n in range(10, count)
    ]
    return "---\n".join((*tables, *views))


_COUNT = f"""() => new Promise((done) => {{
  const begun = performance.now();
  let frames = 0, last = begun, worst = 0, longest = 0, long = 0;
  new PerformanceObserver((list) => {{
    for (const each of list.getEntries()) {{ long++; longest = Math.max(longest, each.duration); }}
  }}).observe({{ entryTypes: ["longtask"] }});
  const next = (now) => {{
    frames++; worst = Math.max(worst, now - last); last = now;
    if (now - begun < {FRAMES_MS}) requestAnimationFrame(next);
    else done([frames * 1000 / (now - begun), worst, longest, long]);
  }};
  requestAnimationFrame(next);
}})"""


async def console(resources: int) -> dict[str, Any]:
    """First paint and frames of the graph, while so many resources of the server move on.

    The browser also counts its tasks of more than 50 ms.
    """
    looks = 0

    async def count(route: Route) -> None:
        nonlocal looks
        looks += 1
        await route.continue_()

    with server(_resources(resources)) as asked:
        async with async_playwright() as driver:
            found = shutil.which("chromium")
            browser = await driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
            page = await browser.new_page(viewport={"width": 1280, "height": 800})
            page.set_default_timeout(START_S_MAX * 1_000)
            await page.route("**/v1/resources?*", count)
            await page.goto(asked.http)
            await page.locator(".item").nth(1).wait_for()
            painted = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
            paint_ms = await page.evaluate(painted)
            await page.get_by_text(f"{resources} resources").first.wait_for()
            frames, worst_ms, longest_ms, long = await page.evaluate(_COUNT)
            await browser.close()
    return {
        "resources": resources, "looks": looks, "first_paint_ms": round(paint_ms),
        "frames_per_s": round(frames, 1), "longest_frame_ms": round(worst_ms),
        "long_tasks": long, "longest_task_ms": round(longest_ms),
    }  # fmt: skip


async def main() -> None:
    """Measure what is asked for, and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("keys", "followers", "console"))
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--rate", type=int, default=500, help="questions a second")
    parser.add_argument("--followers", type=int, default=1_000)
    parser.add_argument("--changes", type=int, default=1_000, help="changes a second")
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--kills", type=int, default=2)
    chosen = parser.parse_args()
    kept: dict[str, Any] = {}
    if chosen.only in (None, "keys"):
        kept["keys"] = await keys(chosen.rows, chosen.rate, chosen.seconds)
    if chosen.only in (None, "followers"):
        told = chosen.followers, chosen.changes, chosen.seconds, chosen.kills
        kept["followers"] = await followers(*told)
    if chosen.only in (None, "console"):
        for count in (200, 1_000):
            kept[f"console {count}"] = await console(count)
    kept["load"] = [round(each, 1) for each in os.getloadavg()]
    print(json.dumps(kept, indent=2))


if __name__ == "__main__":
    asyncio.run(main())
