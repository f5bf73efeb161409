"""Keys go to the same partition in every log: murmur2, as Kafka's own clients do by default."""

from __future__ import annotations

from functools import lru_cache

_SEED = 0x9747B28C
_MIX = 0x5BD1E995
_WORD = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """The unsigned 32-bit murmur2 hash of `data` with the seed that Kafka uses."""
    whole = len(data) & ~3
    h = _SEED ^ len(data)
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * _MIX & _WORD
        k = (k ^ k >> 24) * _MIX & _WORD
        h = h * _MIX & _WORD ^ k
    if whole < len(data):
        h = (h ^ int.from_bytes(data[whole:], "little")) * _MIX & _WORD
    h = (h ^ h >> 13) * _MIX & _WORD
    return h ^ h >> 15


@lru_cache(maxsize=65_536)
def partition_of(key: bytes, partitions: int) -> int:
    """The partition of `key` in a topic with `partitions` partitions."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
