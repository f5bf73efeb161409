"""Check the embedded log: every frame of every segment, and what was acknowledged."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote

from tidemill.errors import Corrupt
from tidemill.runtime.log_segments import (
    described,
    partition_directory,
    segment_bases,
    segment_path,
)
from tidemill.runtime.log_writer import acknowledged, recovered


class LogCheck:
    """Reads everything once and changes nothing, also beside a server; `checked` counts what it
    saw.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.checked: Counter[str] = Counter()

    def problems(self) -> Iterator[str]:
        """Everything that is wrong, topic by topic, then offsets of groups."""
        for path in sorted(self._directory.glob("topics/*/topic.json")):
            self.checked["topics"] += 1
            topic = path.parent.name
            try:
                partitions = described(self._directory, topic).partitions
            except Corrupt as error:
                yield str(error)
                continue
            for partition in range(partitions):
                for problem in self._partition(
                    partition_directory(self._directory, topic, partition)
                ):
                    yield f"topic {topic}, partition {partition}: {problem}"
        for path in sorted(self._directory.glob("groups/*/*.json")):
            if not _is_offsets(path.read_bytes()):
                yield f"offsets of group {unquote(path.parent.name)} in {path.stem}: no offsets"

    def _partition(self, files: Path) -> Iterator[str]:
        told = acknowledged(files)  # before what is read: a server may go on meanwhile
        bases = segment_bases(files)
        end = bases[0]
        for base, following in pairwise([*bases, None]):
            assert base is not None
            try:
                found = recovered(files, base)
            except Corrupt as error:
                yield str(error)
                return
            self.checked["records"] += found.next_offset - base
            end = found.next_offset
            if following is not None and (found.length, end) != (found.size, following):
                name = segment_path(files, base).name
                yield (
                    f"{name} is damaged at byte {found.length}: it ends at offset {end}, the next"
                    f" begins at {following}"
                )
                return
        if end < told:
            yield f"it ends at {end}, but offsets up to {told} were acknowledged"


def _is_offsets(text: bytes) -> bool:
    try:
        return all(int(p) >= 0 and int(offset) >= 0 for p, offset in json.loads(text).items())
    except (ValueError, TypeError, AttributeError):
        return False
