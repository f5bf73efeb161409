"""One run of either side, and the rows of the table that it fills."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter


@dataclass
class Report:
    """The figures of one run: seconds or bytes by name, and sums of the result."""

    figures: dict[str, float] = field(default_factory=dict)
    digest: str = ""
    rows: int = 0

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add up the seconds that the block takes under this name."""
        start = perf_counter()
        yield
        self.figures[name] = self.figures.get(name, 0.0) + perf_counter() - start

    def latencies(self, seconds: list[float], prefix: str = "batch_") -> None:
        """The median, the 99th percentile, the mean and the greatest of many times."""
        ordered = sorted(seconds)
        for name, share in (("p50_s", 0.5), ("p99_s", 0.99), ("max_s", 1.0)):
            self.figures[prefix + name] = ordered[round((len(ordered) - 1) * share)]
        self.figures[prefix + "mean_s"] = sum(seconds) / len(seconds)


@dataclass(frozen=True)
class Row:
    """A line of the table: one figure of both sides; `a/b` is the quotient of two figures.

    The ratio is theirs by ours, so above one is better than the peer; `reach` is what is aimed at.
    With `work` units done in the measured time, throughput is shown.
    """

    title: str
    figure: str
    reach: float | None = None
    work: int | None = None
    unit: str = "s"

    def of(self, figures: dict[str, float]) -> float:
        """This row's figure of one run."""
        above, _, below = self.figure.partition("/")
        return figures[above] / figures[below] if below else figures[above]


@dataclass(frozen=True)
class Workload:
    """The same inputs from one seed through the peer's workload `peer` and our function.

    Both get the seed and `sizes`; both report the same digest, or no time is believed. `code` is
    the measured code of ours, and the part of the product that runs it.
    """

    peer: str
    sizes: tuple[int, ...]
    ours: Callable[..., Report]
    rows: tuple[Row, ...]
    code: str
    crate: str = "differential"
    """The folder of the peer."""


def resident_bytes() -> int:
    """Memory of this process that is in use now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
