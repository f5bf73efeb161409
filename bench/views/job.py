"""A job that several sides do on the same input, and the rows of the table that it fills."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

Sizes = tuple[int, ...]


@dataclass
class Report:
    """The report of one side about one run: figures by name, and digests of results by their
    subject.

    Two sides are compared in every digest that both have.
    """

    figures: dict[str, float] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)

    def latencies(self, seconds: list[float], prefix: str) -> None:
        """The median and the 99th percentile of many times."""
        ordered = sorted(seconds)
        for name, share in (("p50_s", 0.5), ("p99_s", 0.99)):
            self.figures[prefix + name] = ordered[round((len(ordered) - 1) * share)]

    def batches(self, sizes: list[int], seconds: list[float], digests: list[int]) -> None:
        """A load and steps of some sizes: time of the load, median of each size, digests."""
        self.figures["load_s"] = seconds[0]
        self.digests["load"] = f"{digests[0] % 2**64:016x}"
        for size in dict.fromkeys(sizes[1:]):
            steps = [step for step, each in enumerate(sizes) if each == size and step]
            self.figures[f"batch_{size}_s"] = median(seconds[step] for step in steps)
            total = 0
            for step in steps:
                total = (total * 31 + digests[step]) % 2**64
            self.digests[f"batches of {size:,}"] = f"{total:016x}"


@dataclass(frozen=True)
class Aim:
    """The aim of a row: a value of ours at most or at least, or our advantage over the best peer.

    `kind` is "most" or "least" for a value in the unit of the row, "times" for a ratio.
    """

    kind: str
    value: float


@dataclass(frozen=True)
class Row:
    """A line of the table: one figure of every side that has it.

    `unit` is "s", "/s", "bytes" or "times"; of "/s" more is better, of the others less. A figure of
    the form `a/b` is the quotient of two.
    """

    title: str
    figure: str
    aim: Aim | None = None
    unit: str = "s"

    def of(self, figures: dict[str, float]) -> float | None:
        """This row's figure of one run; None if the side does not have it."""
        above, _, below = self.figure.partition("/")
        if above not in figures or (below and below not in figures):
            return None
        return figures[above] / figures[below] if below else figures[above]


@dataclass(frozen=True)
class Job:
    """The same input from fixed seeds through our function and through each of the peers.

    Every side gets `sizes`, those in `scaled` multiplied by the scale of the run.
    """

    sizes: Sizes
    ours: Callable[..., Report]
    rows: tuple[Row, ...]
    peers: tuple[str, ...] = ()
    scaled: tuple[int, ...] = ()
    least: int = 1

    def at_scale(self, scale: float) -> Sizes:
        """The sizes of a run at this scale; a scaled one is a multiple of `least`, and not zero."""
        return tuple(
            max(1, round(size * scale / self.least)) * self.least if place in self.scaled else size
            for place, size in enumerate(self.sizes)
        )
