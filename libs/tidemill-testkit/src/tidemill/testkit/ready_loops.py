"""Ready loops of this tree: `python -m tidemill.testkit.ready_loops` prints the folder of them.

A run of tests takes them, as an installation does. They are compiled once while none of them
changes: tests of distributions pack the same module.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from hashlib import sha256
from importlib import import_module
from pathlib import Path

from tidemill.arrangement.kernels import kept_code
from tidemill.arrangement.kernels.ready import LOOPS
from tidemill.host.warming import SIGNATURES, ahead, signatures
from tidemill.testkit.file_locks import alone

PATIENCE_S = 960.0
"""Enough to compile all loops on a machine that is busy."""


def ready_loops(root: Path) -> Path:
    """The folder with the module of ready loops of a checkout, for the path of modules.

    Needs a C compiler if it has to be built. Cost: some two minutes of a processor, half a second
    if no loop has changed.
    """
    folder = root / ".state/ready-loops" / _digest()
    with alone(root / ".state/loops", "ready"):
        if not (module := folder / "tidemill/ready_loops.abi3.so").exists():
            shutil.rmtree(folder.parent, ignore_errors=True)
            command = [sys.executable, "-m", "tidemill.host.warming", "--ahead", str(folder)]
            plain = {**os.environ, "PYTHONPATH": ""}  # noqa: TID251  loops of another state are there
            subprocess.run(
                command, check=True, env=plain, stdout=subprocess.DEVNULL, timeout=PATIENCE_S
            )
        assert module.exists()
    return folder


def _digest() -> str:
    """Of all loops with their signatures, of the compiler, and of what builds the module."""
    modules = {each.module for each in signatures()}
    for module in modules:
        import_module(module)
    parts = [kept_code.COMPILER]
    parts += sorted(of for loop, of in LOOPS.values() if loop.__module__ in modules)
    parts += [file.read_text() for file in (SIGNATURES, ahead.SOURCE, Path(ahead.__file__))]
    return sha256("\n".join(parts).encode()).hexdigest()[:16]


if __name__ == "__main__":
    print(ready_loops(Path.cwd()))
