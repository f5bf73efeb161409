"""Proofs: trees that show why a record is present, down to inputs (language.md 10)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from tidemill.arrangement.looks import look
from tidemill.datalog.presence import Instant
from tidemill.datalog.records import Record, format_record

Kind: TypeAlias = Literal["input", "stated", "clock", "absent", "derived", "handed", "view"]
"""`handed`: handed on by ticks that are before the history which is known.

`view`: derived by another program.
"""

DEPTH_MAX = 60
"""Levels of a drawn tree before it goes on in another."""


@dataclass(slots=True, eq=False)
class Proof:
    """One fact at one instant and its premises.

    `solutions` is empty for leaves. It has one list of premises for a plain derivation and one for
    each solution of an aggregate. `text` is the fact with its time, or the atom under `not`. `rule`
    is the number of the rule and `rule_text` its text. `place` names the tick in proofs over ticks,
    and the other program of a `view`. Proofs share equal parts; no fact stands above itself.
    """

    text: str
    at: Instant
    kind: Kind
    record: Record | None = None
    rule: int | None = None
    rule_text: str = ""
    place: str = ""
    solutions: list[list[Proof]] = field(default_factory=list)

    def premises(self) -> Iterator[Proof]:
        """Everything directly below, solution by solution."""
        for solution in self.solutions:
            yield from solution

    def every_part(self) -> Iterator[Proof]:
        """This proof and all below it, each once. Any depth."""
        seen: set[int] = set()
        waiting: list[Proof] = [self]
        while waiting:
            part = waiting.pop()
            if id(part) not in seen:
                seen.add(id(part))
                yield part
                waiting.extend(reversed([*part.premises()]))

    def leaves(self) -> frozenset[str]:
        """The texts of the inputs, stated facts, clock events and absences of the proof."""
        return frozenset(
            part.text for part in self.every_part() if part.kind not in ("derived", "view")
        )

    def render(self) -> str:
        """The proof as a tree for people; a part that was shown before is only named again.

        Parts more than `DEPTH_MAX` lines below go on in a tree of their own under a number, so that
        no line grows with the depth. Cost: O(parts of the proof).
        """
        lines: list[str] = []
        shown: set[int] = set()
        trees = deque([self])
        begun = 0
        while trees:
            root = trees.popleft()
            heading = f"[{begun}] " if begun else ""
            begun += 1
            waiting: list[tuple[Proof, str, str, int]] = [(root, heading, "", 0)]
            while waiting:
                part, first, rest, depth = waiting.pop()
                look()
                again = id(part) in shown and bool(part.solutions)
                later = not again and depth == DEPTH_MAX and bool(part.solutions)
                if later:
                    trees.append(part)
                remark = " (shown above)" if again else ""
                remark = f" (goes on at [{begun + len(trees) - 1}])" if later else remark
                lines.append(f"{first}{part.label()}{remark}")
                if not again and not later:
                    shown.add(id(part))
                    waiting += part._lines_below(rest, depth + 1)
        return "\n".join(lines)

    def _lines_below(self, rest: str, depth: int) -> list[tuple[Proof, str, str, int]]:
        """The parts below with the text before their first and later lines, the last first."""
        below = [(part, rest + "├─ ", rest + "│  ", depth) for part in self._branches()]
        if below:
            below[-1] = (below[-1][0], rest + "└─ ", rest + "   ", depth)
        below.reverse()
        return below

    def _branches(self) -> list[Proof]:
        """The parts below for drawing; several solutions each under a line of their own."""
        if len(self.solutions) < 2:
            return [*self.premises()]
        count = len(self.solutions)
        return [self._solution(number, count) for number in range(1, count + 1)]

    def _solution(self, number: int, count: int) -> Proof:
        text, premises = f"solution {number} of {count}", self.solutions[number - 1]
        return Proof(text, self.at, "derived", solutions=[premises], place=self.place)

    def label(self) -> str:
        """One line: the record, the instant, and where it comes from."""
        shown = self.text if self.record is None else format_record(self.record)
        place = self.place or f"at {_instant(self.at)}"
        if self.kind == "derived":
            return (
                shown
                if self.rule is None
                else (f"{shown}  [{place}, rule {self.rule}: {self.rule_text}]")
            )
        if self.kind == "view":
            return f"{shown}  [of the view {self.place}]"
        if self.kind == "absent":
            return f"{shown}  [{place}]"
        kind = "handed on before the known history" if self.kind == "handed" else self.kind
        return f"{shown}  [{kind}, {place}]" if self.place else f"{shown}  [{kind}]"


def _instant(at: Instant) -> str:
    return "the beginning" if at < -(1 << 62) else str(at)
