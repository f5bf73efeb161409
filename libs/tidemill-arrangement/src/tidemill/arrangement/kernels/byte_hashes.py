"""SipHash of bytes that come from outside, by keys that nobody outside knows."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tidemill.arrangement.kernels.arrays import compiled

Bytes: TypeAlias = npt.NDArray[np.uint8]

KEYS = np.array([hash("tidemill") & (2**64 - 1), hash("texts") & (2**64 - 1)], np.uint64)
"""Chosen anew by each process, as Python does, so that nobody can prepare bytes that collide."""


@compiled
def _rotated(word: np.uint64, bits: int) -> np.uint64:
    """The word with its bits turned to the left."""
    return (word << np.uint64(bits)) | (word >> np.uint64(64 - bits))


@compiled
def _round(
    a: np.uint64, b: np.uint64, c: np.uint64, d: np.uint64
) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64]:
    """One round of SipHash."""
    a = a + b
    b = _rotated(b, 13) ^ a
    a = _rotated(a, 32)
    c = c + d
    d = _rotated(d, 16) ^ c
    a = a + d
    d = _rotated(d, 21) ^ a
    c = c + b
    b = _rotated(b, 17) ^ c
    return a, b, _rotated(c, 32), d


@compiled
def hash_of_bytes(
    key: np.uint64, other: np.uint64, data: Bytes, first: int, stop: int
) -> np.uint64:
    """SipHash-1-3 of some bytes, by two keys."""
    a, b = key ^ np.uint64(0x736F6D6570736575), other ^ np.uint64(0x646F72616E646F6D)
    c, d = key ^ np.uint64(0x6C7967656E657261), other ^ np.uint64(0x7465646279746573)
    at = first
    while True:
        word = np.uint64(0)
        count = min(8, stop - at)
        for i in range(count):
            word |= np.uint64(data[at + i]) << np.uint64(8 * i)
        at += count
        if count < 8:
            word |= np.uint64((stop - first) & 0xFF) << np.uint64(56)
        d ^= word
        a, b, c, d = _round(a, b, c, d)
        a ^= word
        if count < 8:
            break
    c ^= np.uint64(0xFF)
    for _ in range(3):
        a, b, c, d = _round(a, b, c, d)
    return a ^ b ^ c ^ d
