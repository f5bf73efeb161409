"""Seconds of the stages of our side: those that the product measures, and those of a profile."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Self

from bench.pipeline.system import Metrics
from tidemill.shard.stages import STAGES

FRAMES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("decode", ("runtime/formats/",)),
    ("sort", ("sorted_updates (", "consolidate (", "_sorted (", "_run_starts (", "_sums (")),
    ("cut", ("between (", "concatenate (", "forget_before (", "_due (", "_drop (")),
    ("encode", ("encode_parts (", "_as_parquet (", "_as_message (", "_described (", "_bounds (")),
    ("read", ("decode_part (", "shard/reading.py", "shard/subscription.py")),
    ("write", ("shard/blob_directory.py", "shard/blob_objects.py", "shard/part_store.py")),
    ("commit", ("tidemill/shard/",)),
    ("poll", ("log_kafka.py", "aiokafka/", "tidemill_ingest/")),
    ("bind", ("tidemill_remap/", "tidemill/reclock/")),
    ("stage", ("tidemill_compute/events/", "tidemill_reclock/")),
    ("operators", ("tidemill/datalog/", "tidemill_compute/views/", "tidemill/arrangement/")),
    ("serve", ("tidemill_server/", "tidemill_query/", "grpc/", "prometheus_client/")),
)
"""Stages of samples: the innermost frame that holds one of these texts tells the stage."""
PER_S = 50
TOOL = Path(".cache/bench-pyspy")


def stages_of(metrics: Metrics, counter: str) -> dict[str, float]:
    """Seconds or rows of the stages that the product counts; seconds are of the clock, and
    overlap.
    """
    return {stage: metrics.total(counter, stage=stage) for stage in STAGES}


def stage_of(stack: str) -> str:
    """The stage of one sampled stack, outermost frame first."""
    for frame in reversed(stack.split(";")):
        for stage, texts in FRAMES:
            if any(text in frame for text in texts):
                return stage
    return "other"


class Profile:
    """Samples the stacks of processes into a folder, if there is one; `shares` has their stages.

    A share is seconds in which a thread computed, or waited inside a native call, in that stage.
    """

    def __init__(self, pids: list[int], folder: Path | None) -> None:
        self.shares: dict[str, float] = {}
        self._pids, self._folder = pids, folder
        self._running: list[tuple[Path, subprocess.Popen[bytes]]] = []

    def __enter__(self) -> Self:
        if self._folder is None:
            return self
        self._folder.mkdir(parents=True, exist_ok=True)
        for pid in self._pids:
            file = self._folder / f"{pid}.txt"
            command = [
                str(installed()), "record", "--format", "raw", "--full-filenames", "--rate", str(PER_S), "--nonblocking",
                "--output", str(file), "--pid", str(pid), "--duration", "86400",
            ]  # fmt: skip
            quiet = subprocess.DEVNULL
            self._running.append((file, subprocess.Popen(command, stdout=quiet, stderr=quiet)))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        counts: Counter[str] = Counter()
        for file, process in self._running:
            process.send_signal(2)
            process.wait()
            for line in file.read_text().splitlines():
                stack, _, count = line.rpartition(" ")
                counts[stage_of(stack)] += int(count)
        self.shares = {f"profile: {stage}": count / PER_S for stage, count in counts.most_common()}


def installed() -> Path:
    """The sampler, installed into the cache if it is not there."""
    program = TOOL / "bin/py-spy"
    if not program.exists():
        uv = shutil.which(".tools/uv/bin/uv") or "uv"
        subprocess.run([uv, "venv", "-q", "--clear", str(TOOL)], check=True)
        python = str(TOOL / "bin/python")
        subprocess.run(
            [uv, "pip", "install", "-q", "--python", python, "py-spy==0.4.3"], check=True
        )
    return program
