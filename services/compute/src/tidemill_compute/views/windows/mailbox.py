"""Questions to a driver and their answers, as objects in a folder of Blob."""

from __future__ import annotations

import msgspec

PAUSE_S, PAUSE_S_MAX = 0.02, 0.5
"""Pause between two looks for an object: short after the last one, longer later."""
DONE, FAILED = b"+", b"-"
"""Before the result of a window or the number of executors, and before the text of an error."""
STAY, END = b"", b"."
"""Questions without a window: a heartbeat, and the last one."""

_ASKED = ".asked"


class SessionSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The folder of a driver, which ends if nobody asks for `idle_s`; a heartbeat keeps it."""

    folder: str
    idle_s: float


def asked_key(folder: str, number: int) -> str:
    """The object of a question, which are counted from 1."""
    return f"{folder}/{number}{_ASKED}"


def asked_number(key: str) -> int:
    """The number of a question by its object; 0 for other objects."""
    number = key.rpartition("/")[2].removesuffix(_ASKED)
    return int(number) if key.endswith(_ASKED) and number.isdecimal() else 0


def told_key(folder: str, number: int) -> str:
    """The object of its answer."""
    return f"{folder}/{number}.told"
