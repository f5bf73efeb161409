"""Folders of machine code: compiled loops, kept for the next process.

Machine code from a file runs with all rights of the process. A trusted folder belongs to the user
of this process, to root, or to the owner of the library. Nobody else can write it.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import sha256
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

PRIVATE = 0o700
OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
DIGEST_BYTES = 32

PORTABLE: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "x86_64": ("x86-64-v3", ("avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe")),
    "aarch64": ("generic", ()),
}
"""By architecture: the processor that installed code is compiled for, and what it has to have."""


@cache
def ready_loops() -> ModuleType | None:
    """The module of ready loops, None if there is none that this processor can run."""
    try:
        found = import_module("tidemill.ready_loops")
    except ImportError:  # none for this system, or of another release of Python
        return None
    return found if found.runs_here() else None


@cache
def has_loops() -> bool:
    """Whether this process can run loops: they came with the wheel, or a compiler is here.

    An installation of a few members may have neither.
    """
    with suppress(ModuleNotFoundError):
        return ready_loops() is not None or all(map(find_spec, ("numba", "llvmlite")))
    return False


_TOLD: list[Callable[[], None]] = []


@contextmanager
def told_of_compiling(tell: Callable[[], None]) -> Iterator[None]:
    """Call `tell` once in the body, before the first loop that this process has to compile.

    Compiling takes seconds of each loop. Ready loops and code that is kept call nobody.
    """
    _TOLD.append(tell)
    try:
        yield
    finally:
        with suppress(ValueError):  # it has been called
            _TOLD.remove(tell)


def compiling_begins() -> None:
    """Tell it to all that wait for it; a loop is about to be compiled."""
    while _TOLD:
        _TOLD.pop()()


class CodeFolders:
    """The folders that machine code is read from, and the one that it is written to.

    `installed` lies beside the library and came with it. Code that it lacks is written there, or,
    where that cannot be, to the first folder of one's own that can be written.
    """

    def __init__(self, installed: Path, *own: Path) -> None:
        self._installed = installed
        self._own: tuple[Path, ...] = (installed, *own)
        self._written: Path | None = None
        self._is_known = False

    def keep_in(self, *folders: Path) -> None:
        """Write to the first of these that is trusted and can be written; others are not made."""
        self._own, self._is_known = folders, False

    def keep_beside(self, folder: Path) -> None:
        """Write beside the library if that can be, else to this folder."""
        self.keep_in(self._installed, folder)

    def readable(self) -> Iterator[Path]:
        """Folders that are there and trusted, the one of the library first."""
        for folder in dict.fromkeys((self._installed, *self._own)):
            if self._is_trusted(folder):
                yield folder

    def written(self) -> Path | None:
        """The folder for code that was compiled here; none if there is no place for it."""
        if not self._is_known:
            self._written = next((f for f in self._own if self._is_made(f)), None)
            self._is_known = True
        return self._written

    def read(self, name: str) -> bytes | None:
        """The content of a file as it was written, None if no folder has it.

        A file is passed over if it is torn, was written under another name, or can be written by
        another user. Its digest covers name and content.
        """
        for folder in self.readable():
            with suppress(OSError):
                handle = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
                with open(handle, "rb") as file:
                    if not self._is_owned(os.fstat(handle), stat.S_IFREG):
                        continue
                    kept = file.read()
                if kept[:DIGEST_BYTES] == _digest(name, kept[DIGEST_BYTES:]):
                    return kept[DIGEST_BYTES:]
        return None

    def write(self, name: str, content: bytes, outdated: str) -> None:
        """Keep a file, whole or not at all, and forget those that it replaces.

        `outdated` is a pattern of their names. A full disk keeps nothing. Of writers at once the
        last one stays: each writes a file of its own and renames it.
        """
        folder = self.written()
        if folder is None:
            return
        with suppress(OSError):
            handle, temporary = tempfile.mkstemp(dir=folder, prefix=".")
            try:
                with open(handle, "wb") as file:
                    file.write(_digest(name, content) + content)
                    file.flush()
                    os.fchmod(handle, folder.stat().st_mode & 0o644)
                    os.fsync(handle)
                os.replace(temporary, folder / name)
            except OSError:
                Path(temporary).unlink(missing_ok=True)
                raise
            for old in folder.glob(outdated):
                if old.name != name:
                    old.unlink(missing_ok=True)

    def _is_made(self, folder: Path) -> bool:
        try:
            if not folder.exists():
                # Installed code is for all users of the library.
                is_installed = folder == self._installed
                modes = self._library.st_mode & 0o755 if is_installed else PRIVATE
                folder.parent.mkdir(parents=True, exist_ok=True)
                folder.mkdir(exist_ok=True)
                folder.chmod(modes)
            # NB: permissions bind no superuser; a file system that is read-only binds everybody.
            tempfile.TemporaryFile(dir=folder).close()
        except OSError:
            return False
        return self._is_trusted(folder)

    def _is_trusted(self, folder: Path) -> bool:
        try:
            return self._is_owned(folder.lstat(), stat.S_IFDIR)
        except OSError:
            return False

    def _is_owned(self, found: os.stat_result, kind: int) -> bool:
        owners = {os.geteuid(), 0, self._library.st_uid}
        is_private = found.st_uid in owners and not found.st_mode & OTHERS_MAY_WRITE
        return stat.S_IFMT(found.st_mode) == kind and is_private

    @property
    def _library(self) -> os.stat_result:
        return self._installed.parent.parent.stat()


def _digest(name: str, content: bytes) -> bytes:
    return sha256(name.encode() + b"\0" + content).digest()


def _user_folder() -> tuple[Path, ...]:
    with suppress(RuntimeError):  # a user without a home
        return (Path.home() / ".cache" / "tidemill" / "machine-code",)
    return ()


FOLDERS = CodeFolders(Path(__file__).parent / "__pycache__" / "machine-code", *_user_folder())
"""Folders of this process."""
