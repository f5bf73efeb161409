"""Histories: what processes asked and what they were told, on one clock; written so that a kill
loses nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec


@dataclass(frozen=True, slots=True)
class Operation:
    """Something asked at `began`; told at `ended` what the answer is. None: nobody was ever told.

    Instants are of one clock that all processes share, in nanoseconds.
    """

    process: str
    call: str
    arguments: Any  # by the call
    began: int
    ended: int | None = None
    answer: Any = None  # by the call


class _Line(msgspec.Struct, omit_defaults=True):
    process: str
    number: int
    at: int
    call: str | None = None
    arguments: Any = None
    answer: Any = None


class Recorder:
    """Appends to the history of one process; a line is in the hands of the system when it is
    written.
    """

    def __init__(self, file: Path, process: str, now_ns: Callable[[], int]) -> None:
        self._descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._process = process
        self._now_ns = now_ns
        self._number = 0

    def began(self, call: str, arguments: object) -> int:
        """An operation is about to begin; its number."""
        self._number += 1
        self._write(_Line(self._process, self._number, self._now_ns(), call, arguments))
        return self._number

    def ended(self, number: int, answer: object) -> None:
        """Its answer came."""
        self._write(_Line(self._process, number, self._now_ns(), None, None, answer))

    def close(self) -> None:
        """No more is written."""
        os.close(self._descriptor)

    def _write(self, line: _Line) -> None:
        os.write(self._descriptor, msgspec.json.encode(line) + b"\n")


def read_history(files: Iterable[Path]) -> list[Operation]:
    """The operations of all processes, ascending by when they began."""
    begun: dict[tuple[str, int], _Line] = {}
    ended: dict[tuple[str, int], _Line] = {}
    for file in files:
        for text in file.read_bytes().splitlines():
            line = msgspec.json.decode(text, type=_Line)
            (ended if line.call is None else begun)[line.process, line.number] = line
    operations = []
    for name, line in begun.items():
        told = ended.get(name)
        operations.append(
            Operation(
                line.process,
                line.call or "",
                line.arguments,
                line.at,
                None if told is None else told.at,
                None if told is None else told.answer,
            )
        )
    return sorted(operations, key=lambda operation: operation.began)
