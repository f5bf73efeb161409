"""Ready loops of this tree: `python -m tidemill.testkit.ready_loops` prints the folder of them.

A run of tests takes them, as an installation does. They are compiled once while none of them
changes: tests of distributions pack the same module, and other checkouts of the user take it.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from contextlib import suppress
from hashlib import sha256
from importlib import import_module
from pathlib import Path

from tidemill.arrangement.kernels import kept_code
from tidemill.arrangement.kernels.ready import LOOPS
from tidemill.arrangement.machine_code import OTHERS_MAY_WRITE, PRIVATE
from tidemill.host.warming import SIGNATURES, ahead, signatures
from tidemill.testkit.file_locks import alone

PATIENCE_S = 960.0
"""Enough to compile all loops on a machine that is busy."""

KEPT_MAX = 16
"""Modules that are kept for other checkouts, of a megabyte each."""


def ready_loops(root: Path, kept: Path | None = None) -> Path:
    """The folder with the module of ready loops of a checkout, for the path of modules.

    `kept` is the folder of modules that checkouts of a user share, below the home folder unless it
    is given. Needs a C compiler if the module has to be built. Cost: some 90 seconds of a
    processor, half a second if no loop has changed, or another checkout has the same.
    """
    digest = _digest()
    folder = root / ".state/ready-loops" / digest
    kept = kept or Path("~/.cache/tidemill/ready-loops").expanduser()
    with alone(root / ".state/loops", "ready"):
        if not (module := folder / "tidemill/ready_loops.abi3.so").exists():
            shutil.rmtree(folder.parent, ignore_errors=True)
            if not _taken(kept / f"{digest}.so", module):
                _build(folder)
                _keep(module, kept / f"{digest}.so")
        assert module.exists()
    return folder


def _build(folder: Path) -> None:
    command = [sys.executable, "-m", "tidemill.host.warming", "--ahead", str(folder)]
    plain = {**os.environ, "PYTHONPATH": ""}  # noqa: TID251  loops of another state are there
    subprocess.run(command, check=True, env=plain, stdout=subprocess.DEVNULL, timeout=PATIENCE_S)


def _taken(kept: Path, module: Path) -> bool:
    """Whether a module was there to take. It is one of the user alone: it runs with all rights."""
    with suppress(OSError):
        told = kept.stat()
        if told.st_uid == os.getuid() and not told.st_mode & OTHERS_MAY_WRITE:
            module.parent.mkdir(parents=True)
            shutil.copy(kept, partial := module.with_suffix(".part"))
            partial.replace(module)
            return True
    return False


def _keep(module: Path, kept: Path) -> None:
    """Keep a module for other checkouts, and forget the oldest.

    A folder that cannot be written keeps none.
    """
    with suppress(OSError):
        kept.parent.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
        shutil.copy(module, partial := kept.with_suffix(f".{os.getpid()}"))
        partial.replace(kept)
        for old in sorted(kept.parent.glob("*.so"), key=_written)[:-KEPT_MAX]:
            old.unlink()


def _written(file: Path) -> float:
    return file.stat().st_mtime


def _digest() -> str:
    """Of all loops with their signatures, of the compiler, and of what builds the module."""
    modules = {each.module for each in signatures()}
    for module in modules:
        import_module(module)
    parts = [kept_code.COMPILER, sys.platform, platform.machine(), platform.libc_ver()[1]]
    parts += sorted(of for loop, of in LOOPS.values() if loop.__module__ in modules)
    parts += [file.read_text() for file in (SIGNATURES, ahead.SOURCE, Path(ahead.__file__))]
    return sha256("\n".join(parts).encode()).hexdigest()[:16]


if __name__ == "__main__":
    print(ready_loops(Path.cwd()))
