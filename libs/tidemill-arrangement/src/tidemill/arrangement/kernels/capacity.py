"""Arrays that grow where they are: pages of memory are moved, and no row is copied."""

from __future__ import annotations

import mmap
from contextlib import suppress
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

PAGE_BYTES = 1 << 21
"""A large page. The system puts memory of whole large pages at the border of one."""
MAPPED_BYTES = 1 << 20
"""Smaller arrays are copied."""
WHOLE_BYTES = 8 * PAGE_BYTES
"""Larger arrays have whole large pages. In smaller ones too much of the last would be unused."""
_PRIVATE = getattr(mmap, "MAP_PRIVATE", 0) | getattr(mmap, "MAP_ANONYMOUS", 0)
_HUGE = getattr(mmap, "MADV_HUGEPAGE", None)
_SMALL = getattr(mmap, "MADV_NOHUGEPAGE", None)
_TAKE = 23
"""`MADV_POPULATE_WRITE` of Linux, which Python 3.11 does not name."""


def grow(holder: object, name: str, rows: int, kept: int) -> None:
    """Give the array in an attribute the capacity for more rows, of which the first `kept` stay.

    Cost: O(1) for a large array that has grown before, while nothing else refers to it; else
    O(bytes).
    """
    array: npt.NDArray[Any] = getattr(holder, name)
    shape, kind = (rows, *array.shape[1:]), array.dtype
    size, row_bytes = prod(shape) * kind.itemsize, prod(shape[1:]) * kind.itemsize
    memory = _memory_of(array)
    if memory is not None:
        setattr(holder, name, array[:0].copy())
        del array
        # Others that refer to the array hold its memory, which then stays as it is.
        with suppress(BufferError, OSError, SystemError, ValueError):
            memory.resize(_whole_pages(size))
        array = _array_in(memory, (min(size, len(memory)) // row_bytes, *shape[1:]), kind)
    if memory is None or len(array) < rows:
        larger = zeros(shape, kind)
        larger[:kept] = array[:kept]
        array = larger
    setattr(holder, name, array)


def zeros(shape: tuple[int, ...], kind: npt.DTypeLike) -> npt.NDArray[Any]:
    """An array of zeros, a large one on large pages: the processor looks addresses up faster."""
    size = prod(shape) * np.dtype(kind).itemsize
    if size < MAPPED_BYTES or not _PRIVATE:
        return np.zeros(shape, kind)
    return _array_in(_mapped(_whole_pages(size)), shape, np.dtype(kind))


def take_pages(array: npt.NDArray[Any], first: int, last: int) -> None:
    """Have the memory of the rows [first, last) of a large array, which are written next.

    Fewer than a large page are in small ones, which one call takes. The system clears a large page
    at once, which takes longer than to write a thousand rows. Cost: O(bytes) of these rows.
    """
    memory = _memory_of(array)
    if memory is None or _SMALL is None or _HUGE is None:
        return
    row_bytes = array.strides[0]
    begin, end = first * row_bytes // mmap.PAGESIZE * mmap.PAGESIZE, last * row_bytes
    few = end - begin < PAGE_BYTES
    with suppress(OSError):  # a system that takes no such advice, or is older
        memory.madvise(_SMALL if few else _HUGE)
        if few and begin < len(memory):
            memory.madvise(_TAKE, begin, end - begin)


def _array_in(
    memory: mmap.mmap, shape: tuple[int, ...], kind: np.dtype[Any]
) -> npt.NDArray[Any]:  # fmt: skip
    """The array at the beginning of some memory."""
    return np.frombuffer(memory, kind, prod(shape)).reshape(shape)


def _whole_pages(size: int) -> int:
    """The bytes of the large pages that a large array needs; of a smaller one its own.

    NB: memory that begins within a page is in small ones, and so is what was moved there once.
    """
    return size if size < WHOLE_BYTES else -(-size // PAGE_BYTES) * PAGE_BYTES


def _mapped(size: int) -> mmap.mmap:
    memory = mmap.mmap(-1, size, flags=_PRIVATE)
    if _HUGE is not None:
        memory.madvise(_HUGE)
    return memory


def _memory_of(array: npt.NDArray[Any]) -> mmap.mmap | None:
    """The mapped memory of an array, if `grow` has made it."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    memory = base.obj if isinstance(base, memoryview) else None
    return memory if isinstance(memory, mmap.mmap) else None
