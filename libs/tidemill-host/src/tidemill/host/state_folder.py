"""The state folder: whoever may write it is Tidemill, whoever may read it reads all rows and pushed
records.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from tidemill.errors import UsageError

PRIVATE = 0o700
"""The modes of the state folder."""

NOBODY_ELSE = 0o077
"""Rights that the process takes away from all files that it makes."""


def own_folder(root: Path) -> None:
    """Make the state folder, or narrow the one that is there, to the user of this process.

    The volume of a container keeps its modes: it is a mount of root, where nobody else is. Raises:
    UsageError that says what to type if others may write what is there, or if it is somebody
    else's.
    """
    try:
        root.mkdir(parents=True, exist_ok=True, mode=PRIVATE)
        found = root.stat()
        if _is_volume(root, found):
            return
        if found.st_uid != os.geteuid():
            raise UsageError(
                f"the state directory {root} belongs to user {found.st_uid}, not to user {os.geteuid()}: "
                f"type chown {os.geteuid()} {root}, or name another one with --dir",
                reason="directory",
            )
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise UsageError(
                f"the state directory {root} may be written by others (mode {found.st_mode & 0o7777:o}): "
                f"see what is in it, then type chmod 700 {root}",
                reason="directory",
            )
        if found.st_mode & NOBODY_ELSE:
            root.chmod(PRIVATE)
    except OSError as error:
        raise UsageError(f"the state directory {root} cannot be made: {error.strerror}") from error


def _is_volume(root: Path, found: os.stat_result) -> bool:
    """Whether it was mounted for this process by root; a folder that many share is sticky."""
    shared = bool(found.st_mode & stat.S_ISVTX)
    return found.st_uid == 0 != os.geteuid() and root.is_mount() and not shared
