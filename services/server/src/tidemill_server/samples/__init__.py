"""Samples to begin with: resources, cases and a generator of rows, written into a folder."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from subprocess import Popen, TimeoutExpired
from typing import Literal, TypeAlias

from tidemill.errors import UsageError

Sample: TypeAlias = Literal["orders", "sensors", "flights"]
GENERATOR = "generate.py"
STOP_S_MAX = 5.0


def contents(sample: Sample) -> dict[str, str]:
    """Text by file name. The generator is the sample's rows followed by what pushes them."""
    here = files(__name__)
    found = {
        name: (here / sample / name).read_text(encoding="utf-8")
        for name in (f"{sample}.yaml", f"{sample}.test.yaml")
    }
    parts = (here / sample / "rows.template", here / "push.template")
    found[GENERATOR] = "".join(part.read_text(encoding="utf-8") for part in parts)
    return found


def write(sample: Sample, folder: Path) -> list[Path]:
    """Write the files of a sample. Raises: UsageError if one of them is there already."""
    texts = contents(sample)
    there = [name for name in texts if (folder / name).exists()]
    if there:
        raise UsageError(
            f"{folder / there[0]} is there already: name another folder", reason="exists"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in texts]


@contextmanager
def generating(sample: Sample, state: Path) -> Iterator[Path]:
    """The file of resources of a sample, while its generator pushes rows to the server of `state`.

    The files lie in the folder of the state, and are written once.
    """
    folder = state / "samples" / sample
    if not (folder / GENERATOR).exists():
        write(sample, folder)
    (state / "http.address").unlink(missing_ok=True)
    command = [
        sys.executable,
        str(folder / GENERATOR),
        "--address-file",
        str(state / "http.address"),
    ]
    with Popen(command) as process:
        try:
            yield folder / f"{sample}.yaml"
        finally:
            process.terminate()
            try:
                process.wait(STOP_S_MAX)
            except TimeoutExpired:
                process.kill()
