"""Where the arrays of batches live: in memory up to a budget, then in files that are mapped."""

from __future__ import annotations

import weakref
from mmap import mmap
from pathlib import Path
from tempfile import TemporaryFile
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tidemill.arrangement.kernels import DiffArray, U64Array


class Storage(Protocol):
    """Gives out room for the arrays of batches."""

    def allocate(self, size: int) -> npt.NDArray[np.uint8]:
        """Room for `size` bytes, at least one; it is given back when nobody refers to it."""


class InMemory:
    """All arrays in memory."""

    def allocate(self, size: int) -> npt.NDArray[np.uint8]:
        return np.empty(size, np.uint8)


class Spill:
    """Arrays in memory while all of them fit in a budget, further ones in files.

    The files have no name in `folder`: their room is given back with the array, also when the
    process dies. What is not touched of an array takes no room in memory nor on disk.
    """

    def __init__(self, folder: Path, memory_bytes_max: int) -> None:
        self._folder = folder
        self._memory_bytes_max = memory_bytes_max
        self.memory_bytes = 0
        """Bytes given out in memory and not given back."""
        self.file_bytes = 0
        """Bytes given out in files and not given back."""

    def allocate(self, size: int) -> npt.NDArray[np.uint8]:
        """Room for `size` bytes. Raises: OSError if the folder cannot hold it."""
        if self.memory_bytes + size <= self._memory_bytes_max:
            room = np.empty(size, np.uint8)
            self.memory_bytes += size
            weakref.finalize(room, self._returned, size, False)
            return room
        with TemporaryFile(dir=self._folder) as file:
            file.truncate(size)
            mapped = np.frombuffer(mmap(file.fileno(), size), np.uint8)
        self.file_bytes += size
        weakref.finalize(mapped, self._returned, size, True)
        return mapped

    def _returned(self, size: int, from_file: bool) -> None:
        if from_file:
            self.file_bytes -= size
        else:
            self.memory_bytes -= size


def new_rows(storage: Storage, rows: int, words: int) -> U64Array:
    """Room for packed rows."""
    if not rows or isinstance(storage, InMemory):
        return np.empty((rows, words), np.uint64)
    return storage.allocate(rows * words * 8).view(np.uint64).reshape(rows, words)


class DiffColumn:
    """Diffs of a batch that is being written: as narrow as they allow so far.

    Cost: amortised O(1) for each diff; at most twice they are written anew.
    """

    __slots__ = ("_array", "_capacity", "_rows", "_storage")

    def __init__(self, storage: Storage, capacity: int) -> None:
        self._storage = storage
        self._capacity = capacity
        self._array: DiffArray = np.empty(0, np.int8)
        self._rows = 0

    def append(self, diffs: DiffArray) -> None:
        """Write more diffs, within the capacity."""
        if not len(diffs):
            return
        low, high = int(diffs.min()), int(diffs.max())
        kind = np.int8 if low >= -128 and high < 128 else np.int64
        if not self._rows:
            self._array = diffs[:1].astype(np.int8) if kind is np.int8 else diffs[:1].copy()
        elif kind is np.int64 and self._array.dtype != np.int64:
            self._widen()
        if len(self._array) == 1 and (low < high or low != int(self._array[0])):
            self._array = self._spread(self._array)
        end = self._rows + len(diffs)
        if len(self._array) > 1:
            self._array[self._rows : end] = diffs
        self._rows = end

    def array(self) -> DiffArray:
        """What was written; one for all rows if they are equal."""
        return self._array if len(self._array) == 1 else self._array[: self._rows]

    def _widen(self) -> None:
        narrow = self._array
        if len(narrow) == 1:
            self._array = narrow.astype(np.int64)
            return
        self._array = self._room(np.dtype(np.int64))
        self._array[: self._rows] = narrow[: self._rows]

    def _spread(self, one: DiffArray) -> DiffArray:
        array = self._room(one.dtype)
        array[: self._rows] = one[0]
        return array

    def _room(self, kind: np.dtype[np.int8] | np.dtype[np.int64]) -> DiffArray:
        size = max(self._capacity, 2) * kind.itemsize
        return self._storage.allocate(size).view(kind)


def narrowed(diffs: DiffArray, storage: Storage) -> DiffArray:
    """Diffs at rest: a single one if they are equal. Cost: O(n)."""
    if len(diffs) > 1 and isinstance(storage, InMemory) and diffs.dtype == np.int8:
        return diffs[:1].copy() if bool((diffs == diffs[0]).all()) else diffs
    column = DiffColumn(storage, len(diffs))
    column.append(diffs)
    return column.array()
