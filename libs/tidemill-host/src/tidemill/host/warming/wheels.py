"""Wheels that are written anew, with files that differ and a list of files that fits."""

from __future__ import annotations

import zipfile
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import TypeAlias

Files: TypeAlias = Mapping[str, bytes]


def rewritten(wheel: Path, target: Path, change: Callable[[str, Files], Files]) -> None:
    """Write a wheel anew to a file, which may be the wheel itself.

    `change` is told the folder of its metadata and all its files, and gives those that differ or
    are new. Other files stay as they are; RECORD lists what is then there.
    Raises: BadZipFile. Cost: reads and packs the whole wheel.
    """
    with zipfile.ZipFile(wheel) as held:
        infos = {each.filename: each for each in held.infolist()}
        files = {name: held.read(name) for name in infos}
    (folder,) = {name.partition("/")[0] for name in files if ".dist-info/" in name}
    files |= change(folder, files)
    files.pop(record := f"{folder}/RECORD")
    lines = [f"{name},{_digest(content)},{len(content)}\n" for name, content in files.items()]
    files[record] = "".join([*lines, f"{record},,\n"]).encode()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as written:
        for name, content in files.items():
            info = infos.get(name) or zipfile.ZipInfo(name)
            written.writestr(info, content, zipfile.ZIP_DEFLATED)


def _digest(content: bytes) -> str:
    return "sha256=" + urlsafe_b64encode(sha256(content).digest()).decode().rstrip("=")
