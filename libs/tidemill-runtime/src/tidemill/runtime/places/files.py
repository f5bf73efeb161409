"""Regular files in named folders, opened without leaving these, whatever links there are."""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from tidemill.errors import UsageError

LINKS_MAX = 40
SYSTEM_FOLDERS = ("/proc", "/dev", "/sys")
_PLACE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Files:
    """Files below `folders`, anywhere if these are None; never below `closed`, nor one of
    `private`.

    A path is walked folder by folder, each held open, so that what was looked at is what is opened.
    """

    setting: str
    folders: tuple[Path, ...] | None = None
    closed: tuple[Path, ...] = ()
    private: tuple[Path, ...] = ()

    def check(self, path: str | Path) -> None:
        """Raises: UsageError if the path may not be named; whether anything is there is not
        said.
        """
        self._start(path)

    def read(self, path: str | Path) -> BinaryIO:
        """A regular file. Raises: UsageError if it may not be read; OSError."""
        with self._place(path) as (folder, name):
            found = self._opened(folder, name, path)
        try:
            return os.fdopen(os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_CLOEXEC), "rb")
        finally:
            os.close(found)

    def content(self, path: str | Path, bytes_max: int) -> bytes:
        """All of a small file. Raises: UsageError if it is larger, or may not be read; OSError."""
        with self.read(path) as file:
            data = file.read(bytes_max + 1)
        if len(data) > bytes_max:
            raise UsageError(f"the file {path} has more than {bytes_max} bytes", reason="FileSize")
        return data

    def stat(self, path: str | Path) -> os.stat_result:
        """Status of a regular file. Raises: UsageError if it may not be read; OSError."""
        with self._place(path) as (folder, name):
            found = self._opened(folder, name, path)
        try:
            return os.fstat(found)
        finally:
            os.close(found)

    def matching(self, pattern: str) -> list[str]:
        """The regular files that a path, a pattern or a folder stands for. Raises: UsageError."""
        if ".." in Path(pattern).parts and glob.has_magic(pattern):
            # Behind a pattern it leads where nobody has looked; what is there would be told by
            # refusals.
            raise self._refused(pattern, "a pattern has no .. in it")
        fixed = Path(pattern)
        while glob.has_magic(str(fixed)):
            fixed = fixed.parent
        self.check(fixed)
        if glob.has_magic(pattern):
            return sorted(_named(name) for name in glob.glob(pattern) if self._is_file(name))
        if Path(pattern).is_dir():
            inside = map(str, Path(pattern).iterdir())
            return sorted(_named(name) for name in inside if self._is_file(name))
        return [pattern] if self._is_file(pattern) else []

    def write(self, path: str | Path, flags: int, mode: int = 0o644) -> int:
        """The descriptor of a regular file, which is made with its folders if there is none, as
        nobody's link.

        Raises: UsageError if it may not be written; OSError.
        """
        with self._place(path, make=True) as (folder, name):
            with suppress(FileExistsError):
                made = os.open(
                    name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode,
                    dir_fd=folder,
                )  # fmt: skip
                os.fchmod(made, mode)
                os.close(made)
            found = self._opened(folder, name, path)
        try:
            return os.open(f"/proc/self/fd/{found}", flags | os.O_CLOEXEC)
        finally:
            os.close(found)

    def _is_file(self, path: str) -> bool:
        try:
            self.stat(path)
        except OSError:
            return False
        except UsageError as error:
            if error.details.get("reason") == "NoFile":
                return False
            raise
        return True

    def _start(self, path: str | Path) -> tuple[str, list[str]]:
        """The folder in which the walk begins, and the names on its way. Raises: UsageError."""
        text = str(path)
        if "\0" in text:
            raise UsageError("a path with a zero byte names no file", reason="FilePlace")
        whole = os.path.abspath(text)
        if self.folders is None:
            return "/", whole.strip("/").split("/")
        for folder in self.folders:
            for root in {os.path.abspath(folder), os.path.realpath(folder)}:
                if whole == root or whole.startswith(f"{root.rstrip('/')}/"):
                    return root, [name for name in whole[len(root) :].split("/") if name]
        raise self._refused(path, f"{self.setting} does not name a folder of it")

    @contextmanager
    def _place(self, path: str | Path, make: bool = False) -> Iterator[tuple[int, str]]:
        """The folder of a file, held open, and the name in it, which is no link."""
        root, names = self._start(path)
        shut = {_identity(os.stat(folder)) for folder in self.closed if folder.exists()}
        held = [os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)]
        names = names[::-1]
        links = 0
        try:
            while True:
                if _identity(os.fstat(held[-1])) in shut:
                    raise self._refused(path, "that folder belongs to the system")
                name = names.pop() if names else "."
                if name == "..":
                    if len(held) > 1:
                        os.close(held.pop())
                    elif root != "/":
                        raise self._refused(path, f"a link leads out of {root}")
                    continue
                target = _link(name, held[-1])
                if target is not None:
                    links += 1
                    if links > LINKS_MAX:
                        raise self._refused(path, "its links go round")
                    if target.startswith("/"):
                        if root != "/":
                            raise self._refused(path, f"a link leads out of {root}")
                        while len(held) > 1:
                            os.close(held.pop())
                    names += [part for part in target.split("/") if part not in ("", ".")][::-1]
                    continue
                if not names:
                    yield held[-1], name
                    return
                if make:
                    with suppress(FileExistsError):
                        os.mkdir(name, 0o755, dir_fd=held[-1])
                held.append(os.open(name, _PLACE | os.O_DIRECTORY, dir_fd=held[-1]))
        finally:
            for each in held:
                os.close(each)

    def _opened(self, folder: int, name: str, path: str | Path) -> int:
        """A handle on a regular file, which neither reads it nor waits for anybody."""
        found = os.open(name, _PLACE, dir_fd=folder)
        told = os.fstat(found)
        if not stat.S_ISREG(told.st_mode):
            os.close(found)
            raise UsageError(f"{path} is no regular file", reason="NoFile")
        own = {_identity(os.stat(each)) for each in self.private if each.exists()}
        if _identity(told) in own:
            os.close(found)
            raise self._refused(path, "that file belongs to the system")
        return found

    def _refused(self, path: str | Path, why: str) -> UsageError:
        return UsageError(f"the file {path} is refused: {why}", reason="FilePlace")


ANY_FILE = Files("places.files.read")
ANY_SINK = Files("places.files.write")


def _named(path: str) -> str:
    """The path of a file.

    Raises: UsageError for a name that no collection can hold, since it is no text.
    """
    try:
        path.encode()
    except UnicodeEncodeError:
        shown = os.fsencode(path).decode(errors="backslashreplace")
        raise UsageError(
            f"the name of the file {shown} is no UTF-8: rename it, or take it away",
            reason="FileName",
        ) from None
    return path


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _link(name: str, folder: int) -> str | None:
    """The target of a link; None for a file that is no link, or is not there."""
    try:
        return os.readlink(name, dir_fd=folder)
    except OSError:
        return None


def private_files(
    directory: Path, files: Sequence[Path]
) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """(folders that are closed, files that are private) of a process with its state in `directory`.

    The folders of `files` are closed with all below, but for the one in which the process runs, or
    is below.
    """
    here = Path.cwd().resolve()
    folders = {file.resolve().parent for file in files}
    apart = [folder for folder in folders if folder != here and folder not in here.parents]
    system = [Path(folder) for folder in SYSTEM_FOLDERS]
    return (directory.resolve(), *system, *sorted(apart)), tuple(files)


def names_many(pattern: str) -> bool:
    """Whether a path may stand for more than one file: a pattern, or a folder."""
    return glob.has_magic(pattern) or Path(pattern).is_dir()
