"""Numbers by key, of keys that are SHA-256: a fifth of what a dictionary of texts takes.

Of events that are told for a while only, old keys are forgotten a span at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

ALL_AT_ONCE: Mapping[str, int] = {}
"""Times of no event: all of them are of one span."""

Words: TypeAlias = "npt.NDArray[np.uint64]"
"""Keys as rows of four words, in the order of their texts."""


def words_of(keys: Iterable[str]) -> Words:
    """Keys of 64 hexadecimal digits as words. Raises: ValueError for others."""
    data = bytes.fromhex("".join(keys))
    found: Words = np.frombuffer(data, ">u8").reshape(-1, 4).astype(np.uint64)
    return found


@dataclass(frozen=True, slots=True)
class _Tier:
    """Keys in order, and the number of each."""

    words: Words
    counts: npt.NDArray[np.uint32]

    @property
    def nbytes(self) -> int:
        return int(self.words.nbytes + self.counts.nbytes)

    def places(self, wanted: Words) -> npt.NDArray[np.int64]:
        """The place of each wanted key, −1 for one that is not there."""
        first = self.words[:, 0]
        at = np.searchsorted(first, wanted[:, 0])
        found = np.full(len(wanted), -1, np.int64)
        open_: npt.NDArray[Any] = np.arange(len(wanted))
        while open_.size:  # once more for keys that begin like the one before, which is rare
            open_ = open_[at[open_] < len(first)]
            open_ = open_[first[at[open_]] == wanted[open_, 0]]
            same = (self.words[at[open_]] == wanted[open_]).all(axis=1)
            found[open_[same]] = at[open_[same]]
            open_ = open_[~same]
            at[open_] += 1
        return found

    def with_all(self, other: _Tier) -> _Tier:
        """Both, of which no key is in two."""
        words = np.concatenate([self.words, other.words])
        order = np.argsort(words[:, 0], kind="stable")
        return _Tier(words[order], np.concatenate([self.counts, other.counts])[order])


class KeyCounts:
    """A number for each key, 0 for those that were never put.

    Exact: keys are compared whole. Memory: 36 bytes a key, and as much again for a moment when
    tiers are merged. Cost: O(log² n) a key, for many at a time.
    """

    def __init__(self) -> None:
        self._tiers: list[_Tier] = []

    def __len__(self) -> int:
        return sum(len(tier.counts) for tier in self._tiers)

    @property
    def nbytes(self) -> int:
        """Bytes that it holds."""
        return sum(tier.nbytes for tier in self._tiers)

    def of(self, keys: Iterable[str]) -> dict[str, int]:
        """The numbers of those keys that have one."""
        asked = list(dict.fromkeys(keys))
        wanted, found = words_of(asked), {}
        for tier in self._tiers:
            places = tier.places(wanted)
            for at in np.flatnonzero(places >= 0):
                found[asked[at]] = int(tier.counts[places[at]])
        return found

    def put(self, counts: Mapping[str, int]) -> None:
        """Set the numbers of these keys."""
        words = words_of(counts)
        numbers = np.fromiter(counts.values(), np.uint32, len(counts))
        fresh = np.ones(len(counts), np.bool_)
        for tier in self._tiers:
            places = tier.places(words)
            there = places >= 0
            tier.counts[places[there]] = numbers[there]
            fresh &= ~there
        if fresh.any():
            order = np.argsort(words[fresh][:, 0], kind="stable")
            self._tiers.append(_Tier(words[fresh][order], numbers[fresh][order]))
        while len(self._tiers) > 1 and len(self._tiers[-2].counts) < 2 * len(
            self._tiers[-1].counts
        ):
            newest = self._tiers.pop()
            self._tiers.append(self._tiers.pop().with_all(newest))

    def add(self, keys: Iterable[str]) -> None:
        """Count each of these keys once more, as often as it comes."""
        told: dict[str, int] = {}
        for key in keys:
            told[key] = told.get(key, 0) + 1
        before = self.of(told)
        self.put({key: count + before.get(key, 0) for key, count in told.items()})


class SpannedCounts:
    """Counts of keys, apart by spans of the times of their events, which are forgotten as a whole.

    An event is in the span of its time, 0 if it has none. Without a span all of them are in one,
    which is never forgotten. Memory: as `KeyCounts`.
    """

    def __init__(self, span_ms: int | None) -> None:
        self._span_ms = span_ms
        self._spans: dict[int, KeyCounts] = {}

    def __len__(self) -> int:
        return sum(map(len, self._spans.values()))

    def of(self, keys: Iterable[str], times: Mapping[str, int] = ALL_AT_ONCE) -> dict[str, int]:
        """The numbers of those keys that have one."""
        found: dict[str, int] = {}
        for span, some in self._apart(keys, times).items():
            if span in self._spans:
                found |= self._spans[span].of(some)
        return found

    def put(self, counts: Mapping[str, int], times: Mapping[str, int] = ALL_AT_ONCE) -> None:
        """Set the numbers of these keys."""
        for span, some in self._apart(counts, times).items():
            known = self._spans.setdefault(span, KeyCounts())
            known.put({key: counts[key] for key in some})

    def add(self, keys: Iterable[str], times: Mapping[str, int] = ALL_AT_ONCE) -> None:
        """Count each of these keys once more, as often as it comes."""
        for span, some in self._apart(keys, times).items():
            self._spans.setdefault(span, KeyCounts()).add(some)

    def forget(self, before: int) -> None:
        """Forget spans of which all times are before an instant. Cost: O(spans)."""
        if self._span_ms is not None:
            for span in [each for each in self._spans if (each + 1) * self._span_ms <= before]:
                del self._spans[span]

    def _apart(self, keys: Iterable[str], times: Mapping[str, int]) -> dict[int, list[str]]:
        if self._span_ms is None:
            some = list(keys)
            return {0: some} if some else {}
        found: dict[int, list[str]] = {}
        for key in keys:
            found.setdefault(times.get(key, 0) // self._span_ms, []).append(key)
        return found
