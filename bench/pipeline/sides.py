"""One run of a workload on either side: figures by name, and the answers."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread

import pyarrow as pa
import pyarrow.compute as pc

from bench.pipeline import records
from bench.pipeline.fifths import Fifths
from bench.pipeline.killing import Killing
from bench.pipeline.peers import PEER, PYTHON, connector
from bench.pipeline.stages import Profile, stages_of
from bench.pipeline.steady import steady
from bench.pipeline.system import ROLES, Metrics, System, running
from bench.pipeline.usage import Usage
from bench.pipeline.workloads import CLOCK_MS, RESOURCES, SKEW_MS, Workload
from tidemill.client import Client
from tidemill.errors import BeforeSince
from tidemill.rpc.messages import Changes, ResourceDocument
from tidemill.runtime.metrics import (
    COLLECTION_UPPER,
    SOURCE_OFFSET_COMMITTED,
    STAGE_ROWS,
    STAGE_SECONDS,
)
from tidemill.testkit.schema_registry import schema_registry

LOOK_S = 0.5
"""Between two looks at our metrics, which take some milliseconds of each process.

A subscriber says when the answers are definite, as Flink says itself when it has ended.
"""
LOOK_AT_ROWS_S = 0.1
"""The same where nobody subscribes: the last look is the figure."""
ASKED_MAX = 5
KILLED_BEFORE = 5
"""While records come, a process dies once a stage has had so large a part of them."""
CALL_S = 600.0
"""Longest call of ours; a machine with other work may stand still for long."""


@dataclass
class Run:
    """Seconds, processor and memory of one run, and what it answered between two instants."""

    figures: dict[str, float]
    answers: pa.Table
    first: int = 0
    """The instant from which on the answers can still be read: older history is forgotten."""
    stages: dict[str, float] = field(default_factory=dict)
    """Seconds by stage."""
    stage_rows: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Options:
    """Broker, size and limits of runs."""

    bootstrap: str
    count: int
    limit_s: float
    checkpoint_s: float
    profile: Path | None
    prefix: str = ""
    """Text before the names of topics."""
    kill: str = ""
    """The stage at which a process is killed, of a system with roles."""
    per_s: int = 0
    """Records of each topic that come each second; 0: all are there before anything begins."""

    @property
    def kill_at(self) -> int:
        """The rows of a stage from which on its process is killed: records are to be on the way."""
        return self.count // KILLED_BEFORE if self.per_s else 1


class NotDone(Exception):
    """A side has not answered within the limit."""


def ours(name: str, workload: Workload, options: Options, roles: bool = False) -> Run:
    """Apply the documents to a fresh system, and wait until every answer is definite."""
    with tempfile.TemporaryDirectory() as told, registry() as address:
        folder = Path(told)
        (folder / "wide.binpb").write_bytes(records.descriptors().SerializeToString())
        text = (RESOURCES / f"{name}.yaml").read_text().replace("@REGISTRY@", address)
        text = text.replace("topic: ", f"topic: {options.prefix}")
        with running(folder, options.bootstrap, ROLES if roles else ()) as system:
            with (
                Usage(lambda: system.pids) as usage,
                Profile(system.pids, options.profile) as profile,
                Killing(system, options.kill, options.kill_at) as killing,
                steady(workload.records, options) as sending,
            ):
                figures = caught_up(system, usage, text, workload, options)
                metrics = system.metrics()
                figures |= {"sent_per_s": sending.per_s()} if options.per_s else {}
            figures |= {"processor_s": usage.processor_s, "peak_mb": usage.peak_mb}
            figures |= {"killed_at": killing.rows} if options.kill else {}
            with Client(system.grpc(), timeout_s=CALL_S) as client:
                answers, first = kept_answers_of(client, workload, options.count)
    seconds = stages_of(metrics, STAGE_SECONDS.name) | profile.shares
    return Run(figures, answers, first, seconds, stages_of(metrics, STAGE_ROWS.name))


def caught_up(
    system: System, usage: Usage, text: str, workload: Workload, options: Options
) -> dict[str, float]:
    """Seconds from apply to the instants at which records are durable, and answers definite."""
    total, last = options.count * workload.topics, records.event_end(options.count)
    figures: dict[str, float] = {}
    fifths = Fifths()
    with Client(system.grpc(), timeout_s=CALL_S) as client, ThreadPoolExecutor(1) as threads:
        began = time.perf_counter()
        client.apply(ResourceDocument(text, "bench.yaml"))
        answers = threads.submit(definite, client, workload.view, last - SKEW_MS - CLOCK_MS - 1)
        try:
            while (passed := time.perf_counter() - began) < options.limit_s:
                metrics = system.metrics("reclock", "query")  # a look costs each some milliseconds
                durable = metrics.total(SOURCE_OFFSET_COMMITTED.name)
                done = durable >= total and answers.done()
                share = 1.0 if done else share_of(metrics, workload, options.count, durable / total)
                fifths.look(share, passed, usage.processor_s, usage.peak_since())
                if durable >= total:
                    figures.setdefault("durable_s", passed)
                if done:
                    ended = answers.result() or time.perf_counter()
                    return figures | fifths.figures() | {"answers_s": ended - began}
                if answers.done():
                    time.sleep(LOOK_AT_ROWS_S if workload.view is None else LOOK_S)
                wait((answers,), LOOK_S)
        finally:
            client.close()  # ends the subscription
    raise NotDone(
        f"{durable:,.0f} of {total:,} records are durable after {options.limit_s:g} s, {figures}"
    )


def share_of(metrics: Metrics, workload: Workload, count: int, durable: float) -> float:
    """The share of the answers that is definite: of the time of events, or of durable records."""
    if workload.view is None:
        return durable
    reached = metrics.most(COLLECTION_UPPER.name, collection=workload.view) - records.START
    return min(max(reached * records.PER_MS / count, 0.0), durable, 1.0)


def definite(client: Client, view: str | None, at: int) -> float | None:
    """When a subscriber has heard that the answers of an instant are definite; None of no view."""
    if view is None:
        return None
    for _ in client.subscribe(view, at, snapshot=False, until=at + 1):
        pass
    return time.perf_counter()


def last_compared(workload: Workload, count: int) -> int:
    """The instant from which on answers are not compared: not all of them are definite."""
    return records.event_end(count) - SKEW_MS - 2 * CLOCK_MS if workload.view else 1 << 62


def kept_answers_of(client: Client, workload: Workload, count: int) -> tuple[pa.Table, int]:
    """The result of `answers_of`, asked again if history was forgotten meanwhile."""
    for _ in range(ASKED_MAX):
        try:
            return answers_of(client, workload, count)
        except BeforeSince:
            continue
    return answers_of(client, workload, count)


def answers_of(client: Client, workload: Workload, count: int) -> tuple[pa.Table, int]:
    """The answers that are still readable, as subscribers see them, and from which instant on."""
    name = workload.view or workload.source
    since, end = None, 1 << 62
    if workload.view:
        (info,) = (found for found in client.collections() if found.id == name)
        (since,) = info.since.elements
        end = records.event_end(count) - SKEW_MS - CLOCK_MS
    parts: list[pa.Table] = []
    for event in client.subscribe(name, since, until=end if workload.view else None):
        if isinstance(event, Changes):
            parts.append(event.table)
        elif parts and (not workload.view or min(event.upper.elements, default=end) >= end):
            break
    rows = pa.concat_tables(parts)
    rows = rows.filter(pc.greater(rows.column("_diff"), 0))
    first = max(since or 0, records.START) if workload.view else 0
    return workload.answers.ours(rows, first, end - CLOCK_MS), first


@contextmanager
def registry() -> Iterator[str]:
    """The address of a schema registry that knows the schema of flat records."""
    known, done = Event(), Event()
    found: list[str] = []

    async def serve() -> None:
        async with schema_registry() as served:
            assert served.register("wide", records.SCHEMA) == records.SCHEMA_NUMBER
            found.append(served.url)
            known.set()
            await asyncio.to_thread(done.wait)

    thread = Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    known.wait()
    try:
        yield found[0]
    finally:
        done.set()
        thread.join()


def flink(name: str, workload: Workload, options: Options) -> Run:
    """The same answers by Flink SQL, from the submission of the job to its end."""
    with tempfile.TemporaryDirectory() as told:
        out = Path(told) / "answers"
        command = [
            PYTHON,
            PEER / "backlog.py",
            options.bootstrap,
            name,
            connector(),
            out,
            f"{options.checkpoint_s:g}",
        ]
        began = time.perf_counter()
        environment = os.environ | {"PYTHONPATH": ""}
        process = subprocess.Popen(
            list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=environment,
        )  # fmt: skip
        with Usage(lambda: [process.pid]) as usage:
            said, errors = process.communicate(timeout=options.limit_s)
        if process.returncode:
            sys.stderr.write(errors[-4_000:])
            raise SystemExit(f"Flink failed: {name}")
        figures = {
            "answers_s": float(said.splitlines()[-1]), "process_s": time.perf_counter() - began,
            "processor_s": usage.processor_s, "peak_mb": usage.peak_mb,
        }  # fmt: skip
        end = last_compared(workload, options.count)
        answers = workload.answers.theirs(out, records.START, end)
        shutil.rmtree(f"{out}-checkpoints", ignore_errors=True)
    return Run(figures, answers)
