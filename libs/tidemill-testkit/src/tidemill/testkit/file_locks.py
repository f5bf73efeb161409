"""Blocks that one process of a machine is in at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path


@contextmanager
def alone(folder: Path, name: str) -> Iterator[None]:
    """Wait until no other process is in a block of this name."""
    folder.mkdir(parents=True, exist_ok=True)
    file = os.open(folder / sha256(name.encode()).hexdigest()[:32], os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)
