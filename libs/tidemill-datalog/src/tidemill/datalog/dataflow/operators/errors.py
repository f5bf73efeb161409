"""Errors as a second stream: which matches failed, and when they hold."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from tidemill.arrangement.interval_updates import BEGIN_WORD, END_WORD
from tidemill.datalog.dataflow.schema import instant_of, instant_word
from tidemill.datalog.presence import BEGINNING, ErrorPresence, Interval, clip, normalise

Span = tuple[int, int]


class Errors:
    """The error collection: texts by rule, each with the updates of its presence.

    Its agenda has the instants at which a text may begin or end.
    """

    def __init__(self) -> None:
        self._found: dict[int, dict[str, dict[Span, int]]] = {}
        self._agenda: list[tuple[int, str]] = []
        self._told = BEGIN_WORD

    def add(self, rule: int, text: str, start: int, end: int, diff: int) -> None:
        """An error of a rule holds on [start, end), or no more."""
        spans = self._found.setdefault(rule, {}).setdefault(text, {})
        spans[start, end] = spans.get((start, end), 0) + diff
        self._note(text, start, end)

    def _note(self, text: str, *instants: int) -> None:
        for at in instants:
            if at < END_WORD:
                heappush(self._agenda, (at, text))

    def forget(self, rule: int, first: int) -> None:
        """Nothing of a rule fails from an instant on."""
        for text, spans in self._found.get(rule, {}).items():
            kept: dict[Span, int] = {}
            for (start, end), diff in spans.items():
                if start < first:
                    span = start, min(end, first)
                    kept[span] = kept.get(span, 0) + diff
            self._found[rule][text] = kept
            self._note(text, first)

    @property
    def soonest(self) -> int:
        """The first instant at which an error that was not told may begin or end."""
        return self._agenda[0][0] if self._agenda else END_WORD

    def tell(self, upper: int) -> list[tuple[str, int, int]]:
        """Each begin and end of an error below an instant, once: (text, instant, 1 or -1).

        Errors that have ended by then are forgotten. Cost: O(errors that begin, end or change).
        """
        lower, self._told = self._told, upper
        moves = []
        due = set()
        while self._agenda and self._agenda[0][0] < upper:
            due.add(heappop(self._agenda)[1])
        for text in sorted(due):
            stretches: list[Interval] = []
            for known in self._found.values():
                if text in known:
                    found = _stretches(known[text])
                    stretches += found
                    spans = {span: n for span, n in known[text].items() if n and span[1] >= upper}
                    known[text] = spans
                    if not any(end >= upper for _, end in found):
                        del known[text]
            for stretch in normalise(stretches):
                for at, diff in zip(map(instant_word, stretch), (1, -1), strict=True):
                    if lower <= at < upper:
                        moves.append((text, at, diff))
        return moves

    def presences(self, upper: int) -> Sequence[ErrorPresence]:
        """Every error with the stretches in which it holds below `upper`, by text."""
        by_text: dict[str, tuple[int, list[Interval]]] = {}
        for rule in sorted(self._found):
            for text, spans in self._found[rule].items():
                stretches = clip(_stretches(spans), BEGINNING, upper)
                if stretches:
                    by_text.setdefault(text, (rule, []))[1].extend(stretches)
        return [
            ErrorPresence(text, rule, start, end)
            for text, (rule, stretches) in sorted(by_text.items())
            for start, end in normalise(stretches)
        ]


class Unheard(Errors):
    """Errors of matches that are found for a second time: nothing is noted."""

    def add(self, rule: int, text: str, start: int, end: int, diff: int) -> None:
        """Do nothing."""


def _stretches(spans: dict[Span, int]) -> list[Interval]:
    """Stretches in which updates add up to more than nothing."""
    moves: dict[int, int] = {}
    for (start, end), diff in spans.items():
        moves[start] = moves.get(start, 0) + diff
        moves[end] = moves.get(end, 0) - diff
    found: list[Interval] = []
    count, since = 0, 0
    for at in sorted(moves):
        before, count = count, count + moves[at]
        if before == 0 and count > 0:
            since = at
        elif before > 0 and count == 0:
            found.append((instant_of(since), instant_of(at)))
    return found
