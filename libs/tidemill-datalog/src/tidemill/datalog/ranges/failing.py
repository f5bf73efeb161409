"""Errors of several ranges as one collection."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tidemill.datalog.presence import ErrorMove


class FailingTexts:
    """The errors that hold in some range: one text of two ranges is one error."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def take(self, errors: Iterable[ErrorMove]) -> list[ErrorMove]:
        """Errors that begin and held in no range before, and that end and hold in none any more."""
        found = []
        sums: Counter[tuple[int, str]] = Counter()
        for text, at, diff in errors:
            sums[at, text] += diff
        for (at, text), diff in sorted(sums.items()):
            before = self._counts[text]
            self._counts[text] += diff
            if bool(before) != bool(self._counts[text]):
                found.append((text, at, 1 if self._counts[text] else -1))
        self._counts = +self._counts
        return found
