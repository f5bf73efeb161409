"""A seeded backend of Hypothesis, for laws that count the cases they met.

By default Hypothesis draws from the constants of all loaded modules and from earlier examples. So
unrelated code changes the cases that a law meets. A law that promises to meet a case draws by
`seeded_backend`: its strategies and the seed alone decide how often it does.
"""

from __future__ import annotations

from random import Random  # noqa: TID251  seeded by who asks

from hypothesis.internal.conjecture.providers import AVAILABLE_PROVIDERS, PrimitiveProvider
from hypothesis.internal.intervalsets import IntervalSet

_SPREAD = 1 << 16
"""Distance of the bounds of a whole number beyond which half of the draws are near the centre."""


def seeded_backend(seed: int) -> str:
    """The name of a backend for `settings(backend=…)` that draws from this seed alone.

    Choices, flags and lengths are drawn evenly, and failures are shrunk as usual. Two laws of the
    same strategies and the same seed draw the same examples.
    """

    class Seeded(_Drawing):
        def __init__(self, conjecturedata: object = None, /) -> None:
            super().__init__(None)
            self._rng = Random(seed)

    name = f"seeded-{seed}"
    AVAILABLE_PROVIDERS[name] = Seeded
    return name


class _Drawing(PrimitiveProvider):
    _rng: Random

    def draw_boolean(self, p: float = 0.5) -> bool:
        return self._rng.random() < p

    def draw_integer(
        self,
        min_value: int | None = None,
        max_value: int | None = None,
        *,
        weights: dict[int, float] | None = None,
        shrink_towards: int = 0,
    ) -> int:
        rng = self._rng
        left = rng.random()
        for value, share in (weights or {}).items():
            left -= share
            if left < 0:
                return value
        least = -(1 << 64) if min_value is None else min_value
        greatest = 1 << 64 if max_value is None else max_value
        if greatest - least > _SPREAD and rng.random() < 0.5:
            centre = min(max(shrink_towards, least), greatest)
            least, greatest = max(least, centre - 100), min(greatest, centre + 100)
        return rng.randint(least, greatest)

    def draw_float(
        self,
        *,
        min_value: float = float("-inf"),
        max_value: float = float("inf"),
        allow_nan: bool = True,
        smallest_nonzero_magnitude: float,
    ) -> float:
        rng = self._rng
        drawn = rng.choice((0.0, 1.0, rng.random(), rng.gauss(0, 1), rng.gauss(0, 1e6), 1e300))
        found = min(max(drawn, min_value), max_value)
        return (
            found
            if abs(found) >= smallest_nonzero_magnitude
            else min(max(0.0, min_value), max_value)
        )

    def draw_string(
        self, intervals: IntervalSet, *, min_size: int = 0, max_size: int = 1 << 32
    ) -> str:
        size = self._rng.randint(min_size, min(max_size, min_size + 8))
        return "".join(chr(intervals[self._rng.randrange(len(intervals))]) for _ in range(size))

    def draw_bytes(self, min_size: int = 0, max_size: int = 1 << 32) -> bytes:
        return self._rng.randbytes(self._rng.randint(min_size, min(max_size, min_size + 8)))
