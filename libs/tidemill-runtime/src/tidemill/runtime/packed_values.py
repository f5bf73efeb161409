"""Values of records that lie in one array of bytes, as a log sends them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias, overload

import numpy as np
import numpy.typing as npt

Bytes: TypeAlias = npt.NDArray[np.uint8]
Places: TypeAlias = npt.NDArray[np.int64]

UNREAD = b"\xffin place of records whose batch cannot be unpacked".ljust(1_021)
"""The value that stands for them: a dead letter in every format. Few records are so long."""


class PackedValues(Sequence[bytes | None]):
    """Value i is the `lengths[i]` bytes of `data` from `starts[i]` on; None if that is below zero.

    Starts ascend. An object of a value is made when it is asked for. `data` cannot be written.
    """

    def __init__(self, data: Bytes, starts: Places, lengths: Places) -> None:
        self.data, self.starts, self.lengths = data, starts, lengths

    @classmethod
    def of(cls, values: Sequence[bytes | None]) -> PackedValues:
        """The same values packed. Cost: O(1) of those that are, else O(bytes)."""
        if isinstance(values, PackedValues):
            return values
        lengths = lengths_of(values)
        starts = np.zeros(len(values) + 1, np.int64)
        np.cumsum(np.maximum(lengths, 0), out=starts[1:])
        data = np.frombuffer(b"".join([value or b"" for value in values]) or b"\0", np.uint8)
        return cls(data, starts[:-1], lengths)

    @classmethod
    def joined(cls, parts: Sequence[PackedValues]) -> PackedValues:
        """The values of all parts, one part behind the other; bytes around them are left out."""
        if len(parts) == 1:
            return parts[0]
        firsts = [int(part.starts[0]) for part in parts]
        pieces = [
            part.data[first : int(part.stops[-1])]
            for part, first in zip(parts, firsts, strict=True)
        ]
        places = np.cumsum([0, *map(len, pieces)])
        starts = [
            part.starts + (place - first)
            for part, place, first in zip(parts, places[:-1].tolist(), firsts, strict=True)
        ]
        data = np.concatenate([*pieces, np.zeros(1, np.uint8)])
        data.flags.writeable = False
        return cls(data, np.concatenate(starts), np.concatenate([part.lengths for part in parts]))

    @property
    def stops(self) -> Places:
        """The end of each value."""
        return self.starts + np.maximum(self.lengths, 0)

    def take(self, places: Places) -> PackedValues:
        """The values at these places, which ascend."""
        return PackedValues(self.data, self.starts[places], self.lengths[places])

    def __len__(self) -> int:
        return len(self.starts)

    @overload
    def __getitem__(self, at: int) -> bytes | None: ...
    @overload
    def __getitem__(self, at: slice) -> PackedValues: ...
    def __getitem__(self, at: int | slice) -> bytes | PackedValues | None:
        if isinstance(at, slice):
            return PackedValues(self.data, self.starts[at], self.lengths[at])
        start, length = int(self.starts[at]), int(self.lengths[at])
        return None if length < 0 else self.data[start : start + length].tobytes()

    def __iter__(self) -> Iterator[bytes | None]:
        whole = self.data.data
        for start, length in zip(self.starts.tolist(), self.lengths.tolist(), strict=True):
            yield None if length < 0 else bytes(whole[start : start + length])


def lengths_of(values: Sequence[bytes | None]) -> Places:
    """The bytes of each value, −1 of one that is None. Cost: O(1) of packed ones, else O(n)."""
    if isinstance(values, PackedValues):
        return values.lengths
    return np.fromiter(
        (-1 if value is None else len(value) for value in values), np.int64, len(values)
    )
