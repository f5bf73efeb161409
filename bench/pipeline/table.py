"""Files of the results of the pipeline, and the tables that people read."""

from __future__ import annotations

import json
import platform
from datetime import date
from importlib.metadata import version
from os import cpu_count, getloadavg
from pathlib import Path
from typing import Any

RESULTS = Path("bench/results/pipeline")
HEAD = [
    "| what | records | ours | Flink | ours by Flink's | processor: ours | Flink | Flink's by ours | memory: ours | Flink | aim | runs | date |",
    "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
]  # fmt: skip
AIMS = {
    "hot": "≥ 300 k/s, ≥ 2 ×", "resample": "≥ 250 k/s, ≥ 2 ×", "join": "≥ 150 k/s, ≥ 2 ×",
    "keyed": "≥ 150 k/s", "avro": "≥ 100 k/s a core", "protobuf": "≥ 100 k/s a core",
    "freshness": "p50 ≤ 150 ms, p99 ≤ 400 ms",
}  # fmt: skip


def about_this_run(options: dict[str, Any]) -> dict[str, str]:
    """Machine and versions that the figures were measured with."""
    info = Path("/proc/cpuinfo").read_text()
    models = [line.split(":")[1].strip() for line in info.splitlines() if "model name" in line]
    memory_kb = int(Path("/proc/meminfo").read_text().split()[1])
    return {
        "processor": f"{cpu_count()} × {models[0] if models else platform.machine()}",
        "memory": f"{memory_kb / 2**20:.0f} GiB",
        "ours": f"Python {platform.python_version()}, pyarrow {version('pyarrow')}, numba {version('numba')}",
        "Flink": f"2.0.0, parallelism 2, checkpoints each {options['checkpoint_s']:g} s",
        "load of the machine at the end": f"{getloadavg()[0]:.1f}",
    }


def write(name: str, found: dict[str, Any], about: dict[str, str]) -> None:
    """Keep what one job gave, and write the tables again."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    kept = {"measured": date.today().isoformat(), "about": about, **found}
    text = json.dumps(kept, indent=1, ensure_ascii=False) + "\n"
    (RESULTS / f"{name}.json").write_text(text)
    every = {file.stem: json.loads(file.read_text()) for file in sorted(RESULTS.glob("*.json"))}
    lines = ["# From records in Kafka to definite answers", ""]
    lines += [f"* {key}: {value}" for key, value in about.items()]
    lines += ["", *HEAD, *(line_of(key, job, job["measured"]) for key, job in every.items())]
    lines += ["", "| job | stage of ours | seconds | rows |", "|---|---|---|---|"]
    lines += [line for key, job in every.items() for line in stages_of(key, job)]
    RESULTS.with_suffix(".md").write_text("\n".join(lines) + "\n")


def stages_of(name: str, job: dict[str, Any]) -> list[str]:
    """A line for each stage of a job."""
    rows = job.get("stage_rows", {})
    return [
        f"| {name} | {stage} | {seconds:.1f} | {rows[stage]:,.0f} |"
        if stage in rows
        else f"| {name} | {stage} | {seconds:.1f} | |"
        for stage, seconds in job["stages"].items()
    ]


def line_of(name: str, job: dict[str, Any], measured: str = "") -> str:
    """A job as a line of the table; ratios are above one where we are better."""
    ours, flink = job["ours"], job.get("flink", {})
    aim = AIMS.get(name, "")
    if "p50_s" in ours:
        delays, processors = (
            [_delays(side) for side in (ours, flink)],
            [_processors(s) for s in (ours, flink)],
        )
        ratio = f"{flink['p50_s'] / ours['p50_s']:.1f}" if flink else ""
        cells = [name, f"{job['count']:,} a second", *delays, ratio, *processors, ""]
    else:
        rates = [_rate(side, job["count"]) for side in (ours, flink)]
        busy = [f"{side['processor_s']:.0f} s" if side else "" for side in (ours, flink)]
        ratios = ["", ""]
        if flink:
            ratios = [f"{flink[key] / ours[key]:.2f}" for key in ("answers_s", "processor_s")]
        cells = [name, f"{job['count']:,}", *rates, ratios[0], *busy, ratios[1]]
    memory = [f"{side['peak_mb']:,.0f} MB" if side else "" for side in (ours, flink)]
    return "| " + " | ".join([*cells, *memory, aim, str(job["runs"]), measured]) + " |"


def _rate(side: dict[str, float], count: int) -> str:
    if not side:
        return ""
    durable = f" (durable after {side['durable_s']:.1f} s)" if "durable_s" in side else ""
    seconds = side["answers_s"]
    return f"{seconds:.1f} s{durable}, {count / seconds / 1000:.1f} k/s"


def _delays(side: dict[str, float]) -> str:
    return f"p50 {1000 * side['p50_s']:.0f} ms, p99 {1000 * side['p99_s']:.0f} ms" if side else ""


def _processors(side: dict[str, float]) -> str:
    return f"{side['processors']:.2f} of them" if side else ""
