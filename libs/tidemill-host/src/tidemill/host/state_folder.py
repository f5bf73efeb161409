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

_FOLDERS, _TOPICS = ("log", "machine-code", "jobs"), Path("log/topics")
_ENDINGS = (".sqlite", ".sqlite-wal", ".sqlite-shm", ".json", ".address", ".log", ".index", ".new")
_FILES = ("lock", "acknowledged", "sessions")
_NEEDED = ("blob", "jobs", "machine-code", "samples", "spark")
_OF_THE_LOG = ("log", "log/groups", "log/topics")
_KINDS = {
    stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device", stat.S_IFDIR: "a folder where a file belongs",
}  # fmt: skip


def own_folder(root: Path) -> None:
    """Make the state folder, or narrow the one that is there, to the user of this process.

    The volume of a container keeps its modes: it is a mount of root, where nobody else is. Raises:
    UsageError that says what to type if others may write what is there, or if it is somebody
    else's. A folder without state that others may read, and that is not empty, is refused too.
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
            _refuse_foreign(root, found)
            root.chmod(PRIVATE)
        if not os.access(root, os.R_OK | os.W_OK | os.X_OK):
            closed = found.st_mode & PRIVATE != PRIVATE
            remedy = (
                f"type chmod 700 {root}, or name"
                if closed
                else "its file system is read-only; name"
            )
            raise UsageError(
                f"the state directory {root} may not be written by its own user (mode "
                f"{found.st_mode & 0o7777:o}): {remedy} another one with --dir",
                reason="directory",
            )
    except OSError as error:
        raise UsageError(_unmade(root, error), reason="directory") from error


def _refuse_foreign(root: Path, found: os.stat_result) -> None:
    """Raise UsageError for a folder that others use: their rights in it are not taken away.

    A state folder that was copied, or whose log is a link, is known by the names of its entries.
    """
    names = sorted({each.name for each in root.iterdir()} - {"lost+found"})
    files = any(_names_a_file(each) and (root / each).is_file() for each in names)
    if names and not files and not set(names) & {*_NEEDED, *_OF_THE_LOG}:
        raise UsageError(
            f"{root} has other entries than those of a state directory, such as {names[0]!r}, and "
            f"others may read it (mode {found.st_mode & 0o7777:o}): name an empty folder with --dir, "
            f"or type chmod 700 {root}",
            reason="directory",
        )


def _unmade(root: Path, error: OSError) -> str:
    """The reason why there is no state folder, with the entry that is in the way."""
    says = f"the state directory {root} cannot be made: "
    barrier = next((each for each in (root, *root.parents) if _in_the_way(each)), None)
    if barrier is not None:
        return f"{says}{barrier} is no folder; name another one with --dir"
    if isinstance(error, PermissionError):
        return (
            f"{says}user {os.geteuid()} may not write where it belongs; name a folder with --dir that "
            "this user may write"
        )
    return f"{says}{error.strerror}; name another one with --dir"


def _in_the_way(path: Path) -> bool:
    return os.path.lexists(path) and not os.path.isdir(path)


def check_files(root: Path, embedded_log: bool = True) -> None:
    """Look whether each entry of the state folder is a regular file, or a folder where one belongs.

    A process whose log is elsewhere may have a file `log` there, to which a shell writes what it
    prints. Links count as their targets. Objects are not looked at: whoever reads one does. Foreign
    folders are left alone: a volume has a `lost+found` of root. An entry that goes meanwhile, or a
    root that is not there, is nothing. Opens no file. Cost: some microseconds for each file of the
    log.

    Raises: UsageError with the path and what to type.
    """
    if _in_the_way(root):
        raise UsageError(f"{root} is no folder, and no state directory", reason="directory")
    try:
        for name in (*_NEEDED, *(_OF_THE_LOG if embedded_log else ())):
            _check_folder(root / name)
        for folder, folders, files in os.walk(root, onerror=_raise):
            place = Path(folder)
            topics = place.relative_to(root) == _TOPICS
            named = [] if topics else [name for name in folders if _names_a_file(name)]
            if place == root:
                folders[:] = [name for name in folders if name in _FOLDERS]
            for path in (place / name for name in (*named, *files)):
                _check_regular(path)
    except OSError as error:
        raise UsageError(
            f"the state directory {root} cannot be read: {error}", reason="directory"
        ) from error


def _check_folder(path: Path) -> None:
    if _in_the_way(path):
        raise UsageError(
            f"{path} is in the way: a state directory has a folder of that name; if the file is "
            f"yours, type mv {path} {path}.aside, or name another state directory with --dir",
            reason="directory",
        )


def _check_regular(path: Path) -> None:
    try:
        kind = stat.S_IFMT(path.stat().st_mode)
        found = _KINDS.get(kind, "of another kind")
    except FileNotFoundError:
        if not path.is_symlink():
            return  # it went meanwhile
        kind, found = stat.S_IFLNK, "a link to nothing"
    except OSError as error:
        kind, found = stat.S_IFLNK, f"a link that leads nowhere ({error.strerror})"
    if kind != stat.S_IFREG:
        shown = f"a link to {found}" if path.is_symlink() and kind != stat.S_IFLNK else found
        raise UsageError(
            f"{path} in the state directory is {shown}, no regular file: see where it comes from, "
            f"then type mv {path} {path}.aside and put the file of a backup there, if it had one",
            reason="directory",
        )


def _names_a_file(name: str) -> bool:
    return name in _FILES or name.endswith(_ENDINGS)


def _raise(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _is_volume(root: Path, found: os.stat_result) -> bool:
    """Whether it was mounted for this process by root; a folder that many share is sticky."""
    shared = bool(found.st_mode & stat.S_ISVTX)
    return found.st_uid == 0 != os.geteuid() and root.is_mount() and not shared
