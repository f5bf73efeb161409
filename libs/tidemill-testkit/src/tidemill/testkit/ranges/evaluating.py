"""A program evaluated range by range in one process, which exchanges the rows itself."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TypeAlias

from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.dataflow.evaluating import presences_of, undeclared
from tidemill.datalog.dataflow.schema import instant_of, instant_word
from tidemill.datalog.placement import Placement, placement_of
from tidemill.datalog.presence import END, ErrorMove, ErrorPresence, Instant
from tidemill.testkit.drawing import Presences
from tidemill.testkit.evaluated import Evaluation
from tidemill.testkit.ranges.running import Merged, Ranges, Steps
from tidemill.testkit.ranges.task import Move, RangeAnswer, RangeSettings, RangeTask, evaluate_range

Evaluate: TypeAlias = "Callable[[Sequence[RangeTask]], Sequence[RangeAnswer]]"
"""Evaluates ranges of one fragment."""


def evaluated_by_ranges(
    checked: CheckedProgram,
    inputs: Presences,
    *,
    upper: int,
    cuts: Sequence[int] = (),
    ranges: int = 3,
    placement: Placement | None = None,
    settings: RangeSettings | None = None,
) -> Evaluation:
    """The answer below `upper`, by windows that end at the cuts; each begins from stored parts.

    Raises: LimitPassed.
    """
    settings = settings or RangeSettings()
    placement = placement or placement_of(checked, undeclared(checked, inputs))
    running = Ranges(placement, ranges, checked.derived, settings)
    feed(running, inputs)
    told = Changes()
    for at in sorted({*cuts, upper}):
        told.take(driven(running.step(at), here(running, settings)))
    return told.evaluation(checked.derived)


def feed(running: Ranges, inputs: Presences, at: Instant | None = None) -> None:
    """Presences of inputs, known from an instant on, as updates."""
    for name, presences in inputs.items():
        found = []
        for each in presences:
            start = each.start if at is None else max(each.start, at)
            if start < each.end:
                found.append((each.record, instant_word(start), instant_word(each.end), 1))
        running.feed(name, found)


def driven(steps: Steps, evaluate: Evaluate) -> Merged:
    """A step, whose ranges somebody evaluates."""
    try:
        tasks = next(steps)
        while True:
            tasks = steps.send(evaluate(tasks))
    except StopIteration as done:
        merged: Merged = done.value
        return merged


def here(running: Ranges, settings: RangeSettings) -> Evaluate:
    """Evaluation of ranges in this process, the last one first."""

    def evaluate(tasks: Sequence[RangeTask]) -> Sequence[RangeAnswer]:
        found = []
        for task in reversed(tasks):
            fragment = running.placement.fragments[task.fragment]
            found.append(evaluate_range(fragment, task, running.told_of(fragment), settings))
        return found[::-1]

    return evaluate


class Changes:
    """The sum of what steps tell."""

    def __init__(self) -> None:
        self._moves: dict[str, list[Move]] = {}
        self._errors: list[ErrorMove] = []

    def take(self, merged: Merged) -> None:
        """Add the changes of one step."""
        for name, moves in merged.moves.items():
            self._moves.setdefault(name, []).extend(moves)
        self._errors += merged.errors

    def evaluation(self, names: Collection[str]) -> Evaluation:
        """Presences of some predicates, and of errors."""
        found = {name: presences_of(self._moves.get(name, ())) for name in names}
        return Evaluation(found, self.errors())

    def errors(self) -> list[ErrorPresence]:
        """The stretches of errors, by text."""
        begun: dict[str, Instant] = {}
        found = []
        for text, at, diff in self._errors:
            if diff > 0:
                begun[text] = instant_of(at)
            else:
                found.append(ErrorPresence(text, 0, begun.pop(text), instant_of(at)))
        found += [ErrorPresence(text, 0, start, END) for text, start in begun.items()]
        return sorted(found, key=lambda each: (each.text, each.start))
