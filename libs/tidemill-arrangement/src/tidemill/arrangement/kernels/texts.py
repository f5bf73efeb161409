"""Texts as words: up to seven bytes and their number, in the order of the texts; longer ones
numbered.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tidemill.arrangement.kernels.arrays import I64Array, U64Array, compiled, inlined

Bytes = npt.NDArray[np.uint8]

_AHEAD = 64
"""The texts whose places in memory are read together."""

SHORT = 7
"""The bytes of a text that lie in one word beside their number."""


@compiled
def words_of_texts(data: Bytes, offsets: I64Array, words: U64Array, long: I64Array) -> int:
    """The word of each text of at most seven bytes; how many are longer, and which: `long`.

    Text i runs from `offsets[i]` to `offsets[i + 1]`. Cost: O(bytes).
    """
    longer = 0
    for i in range(words.size):
        start, end = offsets[i], offsets[i + 1]
        size = end - start
        if size > 7:
            long[longer] = i
            longer += 1
            words[i] = 0
            continue
        word = np.uint64(0)
        for at in range(start, end):
            word = (word << np.uint64(8)) | np.uint64(data[at])
        word <<= np.uint64(8 * (7 - size))
        words[i] = (word << np.uint64(8)) | np.uint64(size)
    return longer


@compiled
def texts_of_words(words: U64Array, data: Bytes, offsets: I64Array) -> None:
    """The bytes of the texts of `words` one after the other, and where each starts and the last
    ends.

    `data` has room for seven bytes each.
    """
    at = 0
    for i in range(words.size):
        offsets[i] = at
        size = words[i] & np.uint64(255)
        for byte in range(size):
            data[at] = np.uint8((words[i] >> np.uint64(56 - 8 * byte)) & np.uint64(255))
            at += 1
    offsets[words.size] = at


@inlined
def _eight(data: Bytes, at: int) -> np.uint64:
    word: np.uint64 = np.uint64(data[at])
    for byte in range(1, 8):
        word |= np.uint64(data[at + byte]) << np.uint64(8 * byte)
    return word


@compiled
def _hash_of(data: Bytes, start: int, end: int) -> np.uint64:
    mixed = np.uint64(end - start) * np.uint64(0x9E37_79B9_7F4A_7C15)
    at = start
    while at + 8 <= end:
        mixed = (mixed ^ _eight(data, at)) * np.uint64(0xFF51_AFD7_ED55_8CCD)
        mixed ^= mixed >> np.uint64(32)
        at += 8
    last = np.uint64(0)
    while at < end:
        last = (last << np.uint64(8)) | np.uint64(data[at])
        at += 1
    mixed = (mixed ^ last) * np.uint64(0xC4CE_B9FE_1A85_EC53)
    return np.uint64(mixed ^ (mixed >> np.uint64(29)))


@compiled
def _hash_ahead(
    data: Bytes, offsets: I64Array, texts: I64Array, first: int,
    kept: Bytes, kept_offsets: I64Array, slots: U64Array, hashes: U64Array, near: I64Array,
) -> int:  # fmt: skip
    """Hashes of the next texts; what looking them up will read is read for all of them at once.

    Each of the three loops waits for memory for many texts together. Returns a number, so that
    nothing is left out.
    """
    mask, low = np.uint64(slots.size - 1), np.uint64(0xFFFF_FFFF)
    n = min(hashes.size, texts.size - first)
    for i in range(n):
        text = texts[first + i]
        hashes[i] = _hash_of(data, offsets[text], offsets[text + 1])
        near[i] = np.int64(slots[hashes[i] & mask] & low)
    for i in range(n):
        near[i] = kept_offsets[max(near[i] - 1, 0)]
    seen = 0
    for i in range(n):
        seen += kept[near[i]]
    return seen


@compiled
def _look_up(
    data: Bytes, start: int, end: int, mixed: np.uint64,
    kept: Bytes, kept_offsets: I64Array, slots: U64Array,
) -> tuple[int, int]:  # fmt: skip
    """The number of a text that is kept, or −1, and the slot where it is or belongs."""
    mask, low = np.uint64(slots.size - 1), np.uint64(0xFFFF_FFFF)
    slot = mixed & mask
    while slots[slot] != 0:
        if (slots[slot] ^ mixed) & ~low == 0:
            number = np.int64(slots[slot] & low) - 1
            at = kept_offsets[number]
            same, byte = kept_offsets[number + 1] - at == end - start, start
            while same and byte + 8 <= end:
                same = _eight(data, byte) == _eight(kept, at)
                byte, at = byte + 8, at + 8
            while same and byte < end:
                same = data[byte] == kept[at]
                byte, at = byte + 1, at + 1
            if same:
                return int(number), int(slot)
        slot = (slot + np.uint64(1)) & mask
    return -1, int(slot)


@compiled
def number_texts(
    data: Bytes, offsets: I64Array, texts: I64Array, done: int,
    kept: Bytes, kept_offsets: I64Array, slots: U64Array, count: int, numbers: U64Array,
) -> tuple[int, int]:  # fmt: skip
    """The number of each text, new ones kept; how many are done and kept when room runs out.

    `texts` are positions in `offsets`; text k that is kept runs from `kept_offsets[k]` on. A slot
    holds the top half of a hash over a number and one; zero is free. At most half are taken.
    Cost: O(bytes), three places in memory for each text.
    """
    hashes, near = np.empty(_AHEAD, np.uint64), np.empty(_AHEAD, np.int64)
    low = np.uint64(0xFFFF_FFFF)
    first = done
    for i in range(done, texts.size):
        if (i - first) % _AHEAD == 0:
            near[0] = _hash_ahead(data, offsets, texts, i, kept, kept_offsets, slots, hashes, near)
        start, end = offsets[texts[i]], offsets[texts[i] + 1]
        mixed = hashes[(i - first) % _AHEAD]
        number, slot = _look_up(data, start, end, mixed, kept, kept_offsets, slots)
        if number < 0:
            at = kept_offsets[count]
            if (
                2 * (count + 1) > slots.size
                or count + 2 > kept_offsets.size
                or at + end - start > kept.size
            ):
                return i, count
            for byte in range(start, end):
                kept[at + byte - start] = data[byte]
            number = count
            count += 1
            kept_offsets[count] = at + end - start
            slots[slot] = (mixed & ~low) | np.uint64(count)
        numbers[i] = np.uint64(number)
    return texts.size, count


@compiled
def fill_slots(kept: Bytes, kept_offsets: I64Array, count: int, slots: U64Array) -> None:
    """The slots of all texts that are kept, in an empty table. Cost: O(bytes)."""
    mask = np.uint64(slots.size - 1)
    for number in range(count):
        mixed = _hash_of(kept, kept_offsets[number], kept_offsets[number + 1])
        slot = mixed & mask
        while slots[slot] != 0:
            slot = (slot + np.uint64(1)) & mask
        slots[slot] = (mixed & ~np.uint64(0xFFFF_FFFF)) | np.uint64(number + 1)
