"""Short texts as words: up to seven bytes and their number, in the order of the texts."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tidemill.arrangement.kernels.arrays import I64Array, U64Array, compiled

Bytes = npt.NDArray[np.uint8]

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
    """The bytes of the texts of `words` one after the other, and where each starts and the last ends.

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
