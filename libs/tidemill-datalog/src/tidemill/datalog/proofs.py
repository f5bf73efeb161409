"""Proofs: trees that show why a record is present, down to inputs (language.md 10)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from tidemill.datalog.presence import Instant
from tidemill.datalog.records import Record, format_record

Kind: TypeAlias = Literal["input", "stated", "clock", "absent", "derived"]


@dataclass(slots=True, eq=False)
class Proof:
    """One fact at one instant and what it follows from.

    `solutions` is empty for leaves, has one list of premises for a plain derivation and one for each solution
    of an aggregate. `text` is the fact with its time, or the atom under `not`; `rule` the number of the rule
    and `rule_text` its text. Proofs share equal parts; no fact stands above itself.
    """

    text: str
    at: Instant
    kind: Kind
    record: Record | None = None
    rule: int | None = None
    rule_text: str = ""
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
        """The texts of the inputs, stated facts, clock events and absences that the proof rests on."""
        return frozenset(part.text for part in self.every_part() if part.kind != "derived")

    def render(self) -> str:
        """The proof as a tree for people; a part that was shown before is only named again."""
        lines: list[str] = []
        shown: set[int] = set()
        waiting: list[tuple[Proof, str, str]] = [(self, "", "")]
        while waiting:
            part, first, rest = waiting.pop()
            again = id(part) in shown and bool(part.solutions)
            lines.append(f"{first}{part.label()}{' (shown above)' if again else ''}")
            if again:
                continue
            shown.add(id(part))
            below = part._branches()
            for number in range(len(below) - 1, -1, -1):
                last = number == len(below) - 1
                waiting.append(
                    (
                        below[number],
                        rest + ("└─ " if last else "├─ "),
                        rest + ("   " if last else "│  "),
                    )
                )
        return "\n".join(lines)

    def _branches(self) -> list[Proof]:
        """The parts below for drawing; several solutions each under a line of their own."""
        if len(self.solutions) < 2:
            return [*self.premises()]
        count = len(self.solutions)
        return [
            Proof(f"solution {number} of {count}", self.at, "derived", solutions=[premises])
            for number, premises in enumerate(self.solutions, 1)
        ]

    def label(self) -> str:
        """One line: the record, the instant, and where it comes from."""
        shown = self.text if self.record is None else format_record(self.record)
        if self.kind == "derived":
            if self.rule is None:
                return shown
            return f"{shown}  [at {_instant(self.at)}, rule {self.rule}: {self.rule_text}]"
        if self.kind == "absent":
            return f"{shown}  [at {_instant(self.at)}]"
        return f"{shown}  [{self.kind}]"


def _instant(at: Instant) -> str:
    return "the beginning" if at < -(1 << 62) else str(at)
