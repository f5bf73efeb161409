"""Installation of Flink: Python's package and the jar of the Kafka connector, in the cache."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

CACHE = Path(".cache/bench-flink")
PYTHON = CACHE / "environment/bin/python"
JARS = CACHE / "jars"
PEER = Path("bench/peers/flink")


def flink_ready() -> None:
    """Install what Flink needs, once; about 1 GB, a minute or two."""
    wanted = (PEER / "requirements.txt").read_text() + (PEER / "pom.xml").read_text()
    stamp = CACHE / "installed.txt"
    if stamp.exists() and stamp.read_text() == wanted:
        return
    CACHE.mkdir(parents=True, exist_ok=True)
    uv = shutil.which(".tools/uv/bin/uv") or "uv"
    subprocess.run([uv, "venv", "-q", "--clear", str(PYTHON.parents[1])], check=True)
    options = ["--python", str(PYTHON), "-r", str(PEER / "requirements.txt")]
    subprocess.run([uv, "pip", "install", "-q", *options], check=True)
    shutil.rmtree(JARS, ignore_errors=True)
    # -U: a failed look-up is otherwise remembered for a day
    subprocess.run(
        ["mvn", "-q", "-B", "-C", "-U", "-f", str(PEER / "pom.xml"),
         "dependency:copy-dependencies", f"-DoutputDirectory={JARS.resolve()}"],
        check=True,
    )  # fmt: skip
    stamp.write_text(wanted)


def connector() -> Path:
    """The jar of the Kafka connector."""
    (jar,) = JARS.glob("*.jar")
    return jar.resolve()
