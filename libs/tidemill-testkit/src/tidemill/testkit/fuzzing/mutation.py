"""Inputs from good ones, by a seed: the same number always gives the same bytes."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random  # noqa: TID251  seeded, so that a failure repeats

EDITS_MAX = 6
LENGTH_MAX = 1 << 16
EXTREMES = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63)
WORDS = (
    b"\xff\xfe", b"\xed\xa0\x80", b"\0", b"9" * 40, b"-1", b"1e999", b"NaN", b'"', b"\\", b"\\ud800",
    b"[" * 60, b"{" * 60, b"(" * 60, b"]", b"}", b":", b",", b"\n", b"\r", b"- ", b"&a *a ", b"!!x ",
    "a\u0301\u0316".encode(), b"_", b"@time(", b"null", b"true",
)  # fmt: skip


def mutated(seeds: Sequence[bytes], seed: str, number: int) -> bytes:
    """Input `number`: one of `seeds` with a few edits; some are left as they are."""
    rng = Random(f"{seed} {number}")
    data = bytearray(rng.choice(seeds))
    for _ in range(rng.randrange(EDITS_MAX + 1)):
        _edit(data, seeds, rng)
    return bytes(data[:LENGTH_MAX])


def _edit(data: bytearray, seeds: Sequence[bytes], rng: Random) -> None:
    at = rng.randrange(len(data) + 1)
    match rng.randrange(8):
        case 0 if data:
            data[at % len(data)] ^= 1 << rng.randrange(8)
        case 1 if data:
            data[at % len(data)] = rng.randrange(256)
        case 2:
            del data[at : at + rng.randrange(1, 17)]
        case 3:
            data[at:at] = rng.randbytes(rng.randrange(1, 9))
        case 4:
            width = rng.choice((1, 2, 4, 8))
            number = rng.choice(EXTREMES) % (1 << 8 * width)
            order = rng.choice(("little", "big"))
            data[at : at + width] = number.to_bytes(width, order)  # type: ignore[arg-type]  # a literal
        case 5:
            data[at:at] = rng.choice(WORDS)
        case 6:
            other = rng.choice(seeds)
            start = rng.randrange(len(other) + 1)
            data[at : at + rng.randrange(33)] = other[start : start + rng.randrange(1, 65)]
        case _:
            length = rng.randrange(1, 33)
            data[at:at] = data[at : at + length] * rng.randrange(1, 9)
