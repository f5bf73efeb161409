"""Sessions of processes that ran in this folder before, and are known to be dead.

A process that is killed says nothing, so that others wait for its lease. One that is started again
in the same folder need not wait: the kernel lets go of a lock when its holder ends.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from threading import Lock

BOOT = Path("/proc/sys/kernel/random/boot_id")
"""A name that each start of a kernel gives itself."""
BYTES_MAX = 64 << 10
"""Of a longer list nothing is believed."""


class Predecessors:
    """Sessions of a folder: those of dead processes, and a list of our own for who comes next.

    The list is believed if its lock is free and the same kernel wrote it. Its writers had the lock
    until they ended. A folder that another process has, or a list of another machine, proves
    nothing, and leases decide. The same holds for a list that cannot be read or written. A process
    that lost its lock and lives on, as on a network, is evicted as a silent one is.
    """

    def __init__(self, file: Path) -> None:
        self.dead: frozenset[str] = frozenset()
        """Sessions that have ended."""
        self._writing = Lock()
        self._fd: int | None = None
        try:
            boot = BOOT.read_text().strip()
            self._fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            first, *sessions = os.pread(self._fd, BYTES_MAX + 1, 0).decode().split("\n")[:-1] or [
                ""
            ]
            whole = os.fstat(self._fd).st_size <= BYTES_MAX
            if whole and boot and first == boot:
                self.dead = frozenset(sessions)
            else:
                os.ftruncate(self._fd, 0)
                os.pwrite(self._fd, f"{boot}\n".encode(), 0)
        except (OSError, ValueError):
            self.close()

    def note(self, session: str) -> None:
        """Put a session of this process down, before it joins its group.

        IMPORTANT: the lock is kept where that fails, as on a full disk. A free lock would say that
        the sessions before this one have ended.
        """
        with self._writing:
            if self._fd is not None:
                with suppress(OSError):
                    os.pwrite(self._fd, f"{session}\n".encode(), os.fstat(self._fd).st_size)

    def close(self) -> None:
        """Give the folder up."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)
