"""Views over rows that are durable already: one process of compute with all of it, or two.

These are two views, or two ranges of one. Each process of compute has a processor of its own, as a
pod with a limit of one has it. All other processes have the processors together.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa

from bench.pipeline import records
from bench.pipeline.sides import CALL_S, LOOK_S, NotDone, Options, Run, answers_of, definite
from bench.pipeline.system import System, running
from bench.pipeline.usage import Usage, measured
from bench.pipeline.workloads import CLOCK_MS, RESOURCES, SKEW_MS, WORKLOADS, Workload
from tidemill.client import Client
from tidemill.rpc.messages import ResourceDocument
from tidemill.runtime.metrics import COLLECTION_UPPER, SOURCE_OFFSET_COMMITTED

VIEWS = ("even/mean", "odd/mean")
FEEDING = ("ingest", "remap,reclock")
ASKING = ("compaction,query",)
RESAMPLE = WORKLOADS["resample"]


def views(options: Options, processes: int) -> Run:
    """Both views kept by so many processes, from their apply until both are definite."""
    return kept_by(options, processes, (RESOURCES / "apart.yaml").read_text(), VIEWS)


def ranges(options: Options, processes: int) -> Run:
    """One view, kept whole by one process, or in as many ranges as there are processes."""
    text = (RESOURCES / "apart.yaml").read_text().partition("\n---\n")[0]
    text = text.replace("  outputs:", f"  ranges: {processes}\n  outputs:")
    return kept_by(options, processes, text, VIEWS[:1])


def kept_by(options: Options, processes: int, text: str, names: Sequence[str]) -> Run:
    """Outputs of applied documents, by so many processes, until all are definite."""
    roles = (*FEEDING, *["compute"] * processes, *ASKING)
    documents = (RESOURCES / "resample.yaml").read_text().partition("\n---\n")
    source = documents[0].replace("topic: ", f"topic: {options.prefix}")
    with (
        tempfile.TemporaryDirectory() as told,
        running(Path(told), options.bootstrap, roles) as system,
        Client(system.grpc(), timeout_s=CALL_S) as client,
    ):
        client.apply(ResourceDocument(source, "bench.yaml"))
        until_durable(system, options)
        pids = [m.process.pid for m in system.members if m.name.startswith("compute")]
        pin(pids)
        before = [measured([pid])[0] for pid in pids]
        with Usage(lambda: pids) as usage:
            took_s = kept(client, options, text, names)
        used = [measured([pid])[0] - first for pid, first in zip(pids, before, strict=True)]
        found = [answers_of(client, view_of(name), options.count) for name in names]
    figures = {"answers_s": took_s, "processor_s": sum(used), "most_processor_s": max(used)}
    first = max(first for _, first in found)
    return Run(figures | {"peak_mb": usage.peak_mb}, pa.concat_tables([t for t, _ in found]), first)


def view_of(name: str) -> Workload:
    """One of the two views, as a workload of its own."""
    return Workload(RESAMPLE.records, RESAMPLE.source, RESAMPLE.answers, name)


def until_durable(system: System, options: Options) -> None:
    """Return once all events of the records are durable. Raises: NotDone."""
    reached = records.event_end(options.count) - SKEW_MS
    end_s = time.monotonic() + options.limit_s
    while time.monotonic() < end_s:
        metrics = system.metrics("reclock", "query")
        durable = metrics.total(SOURCE_OFFSET_COMMITTED.name) >= options.count
        if durable and metrics.most(COLLECTION_UPPER.name, collection=RESAMPLE.source) >= reached:
            return
        time.sleep(LOOK_S)
    raise NotDone(f"not all events are durable after {options.limit_s:g} s")


def kept(client: Client, options: Options, text: str, names: Sequence[str]) -> float:
    """Seconds from the apply of the views until all are definite."""
    last = records.event_end(options.count) - SKEW_MS - CLOCK_MS - 1
    with ThreadPoolExecutor(len(names)) as threads:
        began = time.perf_counter()
        client.apply(ResourceDocument(text, "apart.yaml"))
        ends = threads.map(lambda view: definite(client, view, last), names)
        return max(end or began for end in ends) - began


def pin(pids: Sequence[int]) -> None:
    """Give each process one of the processors of this one, with all of its threads."""
    places = sorted(os.sched_getaffinity(0))
    for number, pid in enumerate(pids):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), {places[number % len(places)]})
