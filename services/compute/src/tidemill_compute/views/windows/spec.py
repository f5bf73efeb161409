"""A window and its answer as bytes: data alone, never code."""

from __future__ import annotations

from hashlib import blake2b
from typing import Literal, TypeAlias

import msgspec

from tidemill.arrangement.interval_updates import END_WORD

Failure = Literal["", "exhausted", "limit", "corrupt", "gone"]
"""Why a window has no answer: another attempt of the same would have none either."""
HeavyRow: TypeAlias = "tuple[str, int, str | int | float | bool | None, int]"
"""A heavy key: the predicate, the column, the value, about how many rows have it."""


class Window(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One interval of a view: a `fresh` one begins with it, others have been there before `lower`.

    `view` is the packed history of the view without parts, the same in all its windows. It was
    placed by the `rows` of its inputs. `parts` are those of the collections that it reads, and
    `lists` the objects that name more of them, but for a fresh view. `changes` are the updates of
    its inputs in the interval as streams of Arrow. With `whole` all keys are looked at, without it
    those that changes touch. A window that is `anew` may look at all keys of a recursion. Matches
    of `heavy` keys are divided among all ranges. A fresh view reads the parts up to `upper`, and no
    changes. It may be divided into up to `ranges_max`, and has the heavy keys of its parts. Work of
    one range alone is divided by time, for `cores`. Another one has at least so many ranges where
    it has to look at all keys after all. `begun_ms` is in the names of the objects that it makes;
    `owner` is nobody else's, since a writer that lost a race deletes its objects.
    """

    owner: str
    view: bytes
    rows: dict[str, int]
    ranges: int
    lower: int
    upper: int
    whole: bool
    begun_ms: int
    parts: dict[str, list[bytes]]
    changes: dict[str, bytes]
    fresh: bool = False
    ranges_max: int = 1
    heavy: tuple[HeavyRow, ...] = ()
    cores: int = 0
    anew: bool = False
    lists: dict[str, list[str]] = {}


class WindowResult(msgspec.Struct, frozen=True):
    """Packed parts by collection, and by how many rows each predicate has grown.

    With `whole`, `rows` are all rows of each predicate. `touched` are the ranges that had work,
    `exchanged` the bytes that fragments dealt out to one another. `turn` is the first instant at
    which a range changes by itself. `stages` are those of Spark. `looked` are the rows of
    before that ranges read, without facts that are in all of them.
    """

    parts: dict[str, list[bytes]]
    rows: dict[str, int]
    whole: bool
    touched: int = 0
    turn: int = END_WORD
    failure: Failure = ""
    message: str = ""
    exchanged: int = 0
    stages: int = 0
    looked: int = 0


def pack_window(window: Window) -> bytes:
    """The bytes of a window."""
    return msgspec.msgpack.encode(window)


def unpack_window(packed: bytes) -> Window:
    """The window of `pack_window`. Raises: msgspec.DecodeError.

    A field that this version does not know is refused: an older image that passed over it would
    answer wrongly.
    """
    return msgspec.msgpack.decode(packed, type=Window)


def name_of(packed: bytes) -> str:
    """The name of a window: that of no other one, and the same at each attempt."""
    return blake2b(packed, digest_size=12).hexdigest()
