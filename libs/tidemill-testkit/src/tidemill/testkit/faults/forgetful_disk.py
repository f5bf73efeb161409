"""A disk that forgets what was not flushed: what a folder would hold if the power failed now."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")


@dataclass(frozen=True, slots=True)
class ForgetfulDisk:
    """A folder whose flushes are written down, for the processes that run in `environment`.

    The strictest disk there may be: a file has the contents of its last flush, a folder the names
    of its own. A disk may keep more, so data that survives this one survives any.
    """

    root: Path
    record: Path
    library: Path

    @classmethod
    def made(cls, folder: Path) -> ForgetfulDisk:
        """A new disk below a folder. Raises: CalledProcessError without a C compiler."""
        disk = cls(folder / "disk", folder / "record", folder / "forgetful_disk.so")
        disk.root.mkdir()
        disk.record.mkdir()
        command = ["cc", "-shared", "-fPIC", "-O1", "-o", str(disk.library), str(SOURCE), "-ldl"]
        subprocess.run(command, check=True)
        return disk

    def environment(self, outer: Mapping[str, str]) -> dict[str, str]:
        """The variables of a process whose disk this is."""
        ours = {
            "LD_PRELOAD": str(self.library),
            "FORGETFUL_ROOT": str(self.root.resolve()),
            "FORGETFUL_RECORD": str(self.record),
        }
        return {**outer, **ours}

    def after_power_failed(self, into: Path) -> None:
        """Make the folder `into` what the disk would hold."""
        self._restore(self.root.stat().st_ino, into)

    def _restore(self, inode: int, into: Path) -> None:
        into.mkdir()
        names = self.record / f"d{inode}"
        if not names.exists():
            return
        for line in names.read_text().splitlines():
            number, name = line.split(" ", 1)
            file = self.record / f"f{number}"
            if (self.record / f"d{number}").exists():
                self._restore(int(number), into / name)
            else:
                (into / name).write_bytes(file.read_bytes() if file.exists() else b"")
