"""The fifths of the answers, and what each took: whether a long backlog slows down, or grows."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

PARTS = 5


@dataclass
class Fifths:
    """Looks at how much is done, in ascending order of time.

    The first fifth begins at the last look that saw nothing done: a start is no part of it. A
    border between two looks is taken to lie on the line between them.
    """

    looks: list[tuple[float, float, float, float]] = field(
        default_factory=lambda: [(0.0, 0.0, 0.0, 0.0)]
    )
    """The share that was done, seconds, seconds of the processor, and MB at most since the look
    before.
    """

    def look(self, share: float, seconds: float, processor_s: float, peak_mb: float) -> None:
        """Note a look; a share that is less than before counts as the one before."""
        self.looks.append((max(share, self.looks[-1][0]), seconds, processor_s, peak_mb))

    def figures(self) -> dict[str, float]:
        """Seconds, processor and memory of each fifth, and the rate of the last by the first.

        Nothing where some fifth went by between two looks, or the end was not seen.
        """
        begun = max(at for at, (share, *_) in enumerate(self.looks) if share <= 0)
        shares, seconds, processor, peaks = np.array(self.looks[begun:]).T
        if shares[-1] < 1 or np.diff(shares).max(initial=0.0) > 1 / PARTS:
            return {}
        borders = np.arange(PARTS + 1) / PARTS
        found: dict[str, float] = {}
        columns = {"s": seconds, "processor_s": processor}
        for name, column in columns.items():
            took = np.diff(_at(borders, shares, column))
            found |= {f"fifth_{n}_{name}": float(each) for n, each in enumerate(took, 1)}
            ending = "" if name == "s" else "_processor"
            if took[-1] > 0:
                found[f"last_by_first{ending}"] = float(took[0] / took[-1])
        for number in range(PARTS):
            inside = (shares >= borders[number]) & (shares <= borders[number + 1])
            if inside.any():
                found[f"fifth_{number + 1}_mb"] = float(peaks[inside].max())
        return found


def _at(
    borders: np.ndarray[tuple[int], np.dtype[np.float64]],
    shares: np.ndarray[tuple[int], np.dtype[np.float64]],
    column: np.ndarray[tuple[int], np.dtype[np.float64]],
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """A figure at each border: at a share that several looks saw, what the first of them saw."""
    known, first = np.unique(shares, return_index=True)
    at: np.ndarray[tuple[int], np.dtype[np.float64]] = np.interp(borders, known, column[first])
    return at
