"""The error collection: which solutions were dropped because an expression failed, and when
(language.md 9).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tidemill.datalog.logical.forms import CLOCK, RuleForm
from tidemill.datalog.presence import Instant, Interval, clip, normalise
from tidemill.datalog.records import Record, format_record


@dataclass(frozen=True, slots=True)
class ErrorPresence:
    """One stretch of an error: `text` is `REASON: FACTS`, `rule` the first rule with that text."""

    text: str
    rule: int
    start: Instant
    end: Instant


class Failures:
    """Collects what failed; equal texts are one."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[int, list[Interval]]] = {}

    def add(self, rule: int, text: str, start: Instant, end: Instant) -> None:
        """The error `text` of a rule holds on [start, end)."""
        known = self._found.get(text)
        if known is None:
            self._found[text] = (rule, [(start, end)])
        else:
            known[1].append((start, end))
            if rule < known[0]:
                self._found[text] = (rule, known[1])

    def of_match(
        self, form: RuleForm
    ) -> Callable[[str, Instant, Instant, tuple[tuple[Any, ...], ...]], None]:
        """A function that reports a failed match by its facts in the order of the atoms."""
        return self._reporter(form, [atom.predicate for atom in form.atoms])

    def of_clock(
        self, form: RuleForm
    ) -> Callable[[str, Instant, Instant, tuple[tuple[Any, ...], ...]], None]:
        """The same for a clock that cannot be used: the facts are those of the other atoms."""
        return self._reporter(form, [atom.predicate for atom in form.atoms if not atom.is_clock])

    def _reporter(
        self, form: RuleForm, predicates: list[str]
    ) -> Callable[[str, Instant, Instant, tuple[tuple[Any, ...], ...]], None]:
        def report(
            reason: str, start: Instant, end: Instant, rows: tuple[tuple[Any, ...], ...]
        ) -> None:
            facts = [fact_text(name, row[4:]) for name, row in zip(predicates, rows, strict=True)]
            self.add(form.number, f"{reason}: {' ^ '.join(facts)}", start, end)

        return report

    def of_fact(self, rule: int, predicate: str, key: tuple[Any, ...]) -> Callable[..., None]:
        """A function that reports a derived fact whose merged value fails."""

        def report(reason: str, start: Instant, end: Instant) -> None:
            self.add(rule, f"{reason}: {fact_text(predicate, key)}", start, end)

        return report

    def extend(self, other: Failures) -> None:
        """Take over everything that another collection holds."""
        for text, (rule, intervals) in other._found.items():
            for start, end in intervals:
                self.add(rule, text, start, end)

    def __bool__(self) -> bool:
        return bool(self._found)

    def presences(self, lower: Instant, upper: Instant) -> list[ErrorPresence]:
        """Every error with its stretches inside the window, by text."""
        return [
            ErrorPresence(text, rule, start, end)
            for text, (rule, intervals) in sorted(self._found.items())
            for start, end in clip(normalise(intervals), lower, upper)
        ]


def fact_text(predicate: str, key: tuple[Any, ...]) -> str:
    """A fact with its time only, as error texts and proofs write it."""
    return format_record(Record(predicate, tuple(key[1:]), key[0]))


__all__ = ["CLOCK", "ErrorPresence", "Failures", "fact_text"]
