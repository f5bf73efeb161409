"""The outcome of a run: counts of events, measurements, and every promise that was broken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median

FAULT = "fault: "
FELT = "felt: "
"""Beside the fault itself: what somebody noticed of it."""


@dataclass(slots=True)
class Outcome:
    """Counts, seconds by what was measured, and violations."""

    happened: Counter[str] = field(default_factory=Counter)
    measured: dict[str, list[float]] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)

    def expect(self, holds: object, problem: str) -> None:
        """A promise was broken unless this holds."""
        if not holds and problem not in self.violations:
            self.violations.append(problem)

    def measure(self, what: str, seconds: float) -> None:
        """So long it took."""
        self.measured.setdefault(what, []).append(seconds)

    def counted(self, prefix: str) -> Iterator[tuple[str, int]]:
        """The counts whose names begin so, without that."""
        for name, count in sorted(self.happened.items()):
            if name.startswith(prefix):
                yield name.removeprefix(prefix), count

    def lines(self) -> Iterator[str]:
        """The report as it is printed."""
        others = Counter({n: c for n, c in self.happened.items() if ": " not in n})
        for title, counts in (
            ("faults", list(self.counted(FAULT))),
            ("what was felt of them", list(self.counted(FELT))),
            ("operations and checks", sorted(others.items())),
        ):
            yield title
            yield from (f"  {count:>9,}  {name}" for name, count in counts)
        yield "seconds: median, greatest, times"
        for what, seconds in sorted(self.measured.items()):
            yield f"  {median(seconds):>9.2f} {max(seconds):>7.2f} {len(seconds):>4}  {what}"
        yield f"violations: {len(self.violations) or 'none'}"
        yield from self.violations
