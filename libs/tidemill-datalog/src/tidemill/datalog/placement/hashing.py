"""Hashes of values that follow the equality of the language, the same on every machine.

Values that a join may call equal have one hash: 1 and 1.0, 0.0 and -0.0. So have a whole number
beyond 2^53 and the float that it widens to. Texts are in normal form C, as all values of the
language are. The values of a key have no order, so facts that name them in another one meet.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, timedelta
from hashlib import blake2b
from typing import Any

from tidemill.datalog.elements import TruthElement
from tidemill.datalog.records import typed_of
from tidemill.time.typed import (
    TYPE_NAMES,
    days_of_date,
    micros_of_instant,
    micros_of_span,
    write_typed,
)

_MASK = (1 << 64) - 1
SEED = 0x9E3779B97F4A7C15
NULL, FALSE, TRUE = 0x5BF03635DCD13A6D, 0x2545F4914F6CDD1D, 0x6C62272E07BB0142
_SET = 0xD1B54A32D192ED03
MOMENTS: Mapping[str, int] = {
    "timestamp": 0xA24BAED4963EE407, "date": 0x8CB92BA72F3D8DD7, "duration": 0xC2B2AE3D27D4EB4F,
}  # fmt: skip
"""Seeds of types whose values are counts: of microseconds since 1970, of days, of microseconds."""
_WORDS: Mapping[type, Callable[[Any], int]] = {
    datetime: micros_of_instant, date: days_of_date, timedelta: micros_of_span,
}  # fmt: skip


def range_of(values: Sequence[Any], ranges: int) -> int:
    """The range, from 0, in which facts with these values of a key are. Cost: O(size of values).

    Ranges are intervals of hashes in their order: twice as many are the same ones, each cut in two.
    """
    return spot_of(values) * ranges >> 32


def spot_of(values: Sequence[Any]) -> int:
    """The spot of facts with these values of a key: 32 bits, an interval of them for each range."""
    return _mixed(sum(map(hash_of, values)) + SEED & _MASK) >> 32


def hash_of(value: Any) -> int:
    """A hash of one value, of 64 bits."""
    if value is None:
        return NULL
    if isinstance(value, bool | TruthElement):
        return TRUE if value else FALSE
    if isinstance(value, int | float):
        number = float(value) + 0.0
        return _mixed(int.from_bytes(struct.pack("<d", number), "little") + SEED & _MASK)
    if isinstance(value, str):
        return int.from_bytes(blake2b(value.encode(), digest_size=8).digest(), "little")
    if (typed := typed_of(value)) is not None:
        if type(typed) in _WORDS:
            return _mixed(_WORDS[type(typed)](typed) + MOMENTS[TYPE_NAMES[type(typed)]] & _MASK)
        return hash_of(f"{TYPE_NAMES[type(typed)]} {write_typed(typed)}")
    return _mixed(sum({*map(hash_of, value)}) + _SET & _MASK)


def _mixed(word: int) -> int:
    """The finalizer of MurmurHash3."""
    word = (word ^ word >> 33) * 0xFF51AFD7ED558CCD & _MASK
    word = (word ^ word >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return word ^ word >> 33
