"""The other sides: how they are installed, and by which command each runs a job."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ENVIRONMENT = Path(".cache/bench-peers")
PYTHON = str(ENVIRONMENT / "bin/python")
REQUIREMENTS = Path("bench/views/peers.txt")
BINARIES: Mapping[str, Path] = {
    "differential": Path("bench/peers/differential/target/release/views"),
}
"""Binaries of the sides in Rust, which cargo builds."""

COMMANDS: Mapping[str, tuple[str, ...]] = {
    "clingo": (PYTHON, "-m", "bench.views.sides.clingo_side"),
    "pathway": (PYTHON, "-m", "bench.views.sides.pathway_side"),
    "pathway-batch": (PYTHON, "-m", "bench.views.sides.pathway_side"),
    "bytewax": (PYTHON, "-m", "bench.views.sides.bytewax_side"),
    **{peer: (sys.executable, "-m", "bench.views.sides.rust_side", peer) for peer in BINARIES},
}


def peers_ready(wanted: set[str], without: set[str]) -> None:
    """Install what the wanted peers need, into an environment of its own and the target folder of
    Rust.
    """
    wanted = {peer for peer in wanted if peer.split("-")[0] not in without}
    for peer in wanted & set(BINARIES):
        target = ["--target-dir", str(BINARIES[peer].parents[1].resolve())]
        manifest = ["--manifest-path", f"bench/peers/{peer}/Cargo.toml"]
        subprocess.run(["cargo", "build", "--release", *manifest, *target], check=True)
    if not any(COMMANDS[peer][0] == PYTHON for peer in wanted):
        return
    stamp = ENVIRONMENT / "installed.txt"
    text = REQUIREMENTS.read_text()
    if stamp.exists() and stamp.read_text() == text:
        return
    uv = shutil.which(".tools/uv/bin/uv") or "uv"
    subprocess.run([uv, "venv", "-q", "--clear", str(ENVIRONMENT)], check=True)
    subprocess.run(
        [uv, "pip", "install", "-q", "--python", PYTHON, "-r", str(REQUIREMENTS)], check=True
    )
    stamp.write_text(text)
