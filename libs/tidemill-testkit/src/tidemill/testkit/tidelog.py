"""Random small programs of the language and inputs for them, as Hypothesis strategies."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from hypothesis import strategies as st

from tidemill.datalog.ast import Program, Rule
from tidemill.datalog.catalog import Catalog, InputSchema
from tidemill.datalog.check import check
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.diagnostics import ProgramErrors
from tidemill.datalog.parser import parse
from tidemill.datalog.presence import END, Presence
from tidemill.datalog.records import Record

UPPER = 12
"""All instants of generated inputs lie in [0, UPPER)."""

_ARITIES = {"a": 1, "b": 2, "r": 1, "s": 2, "p": 1, "q": 1, "t": 2}
_EVENTS = ("a", "b")
_DERIVED = ("p", "q", "t")
_GUARDS = (
    "x < y", "x != y", "x <= 1", "u <= w", "u + 3 > w", "x + y >= 2", "u >= 2", "x / y >= 1",
    "x < y || x == 1", "z == x + 1", "u < w ^ w <= u + 4", "2 / x == 1", "u == w", "y - x == 1 && x > 0",
)  # fmt: skip
_HEAD_MARKS = (
    "", "", "", "", "@time(u + 2)", "@time(u)", "@time(3)", "@expires(u + 4)", "~expires",
    "@time(u + 1) @expires(u + 5)", "@count(y)", "@sum(x)", "@min(y)", "@max(x) @count(1)", "@set(y)",
    "@average(x)", "@count_distinct(y)", "@count(y) @expires(u + 3)", "@sum(y) @time(u)",
    "@provenance(\"k\")", "~provenance", "@count(y) ~expires", "~count ~sum ~min ~max ~set ~average",
)  # fmt: skip
_ATOM_MARKS = (
    "", "", "", "", "", "@time(u)", "@time(w)", "@time(u)", "~time", "~expires", "~time ~expires",
    "@expires(w)", "@count(y)", "@time(u) ~expires", "@provenance(_)", "@min(x)", "@time(4)",
)  # fmt: skip
_TERMS = ("x", "x", "x", "y", "y", "z", "_", "1", "x + 1", "0")
_CLOCKS = ("clock(0, 3) @time(u)", "clock(1, 4) @time(w)", "clock(x, 3) @time(w)", "clock(2, y)")


@st.composite
def _atoms(draw: st.DrawFn, predicates: Sequence[str]) -> str:
    if draw(st.integers(0, 9)) == 0:
        return draw(st.sampled_from(_CLOCKS))
    name = draw(st.sampled_from(predicates))
    terms = [draw(st.sampled_from(_TERMS)) for _ in range(_ARITIES[name])]
    return f"{name}({', '.join(terms)}) {draw(st.sampled_from(_ATOM_MARKS))}".strip()


def _names(text: str) -> set[str]:
    """The variables that a piece of a rule names."""
    return set(re.findall(r"\b[uwxyz]\b", text))


_NEXT_MARKS = (
    "@next",
    "@next",
    "@next",
    "@count(y) @next",
    "~expires @next",
    "@expires(u + 3) @next",
)


@st.composite
def _rules(draw: st.DrawFn, marks_allowed: Sequence[str] = _HEAD_MARKS) -> str:
    name = draw(st.sampled_from(_DERIVED))
    every = tuple(_ARITIES)
    body = draw(st.lists(_atoms(every), min_size=1, max_size=3))
    bound = _names(" ".join(body))
    for absent in draw(st.lists(_atoms(every), max_size=1)):
        body.append(f"not {absent.split(' ~')[0]}")
    guards = [guard for guard in _GUARDS if _names(guard) <= bound]
    guard = draw(st.lists(st.sampled_from(guards), max_size=2)) if guards else []
    condition = f" if {' ^ '.join(guard)}" if guard else ""
    columns = sorted(bound & {"x", "y", "z"})
    terms = [draw(st.sampled_from((*columns, *columns, "1"))) for _ in range(_ARITIES[name])]
    marks = [
        mark for mark in marks_allowed if _names(mark) <= bound and not _names(mark) & set(terms)
    ]
    mark = draw(st.sampled_from(marks)) if marks else ""
    return f"{name}({', '.join(terms)}) {mark} := {' ^ '.join(body)}{condition};"


CATALOG = Catalog(
    {
        name: InputSchema(
            name, "events" if name in _EVENTS else "relation", (("", "int"),) * _ARITIES[name]
        )
        for name in ("a", "b", "r", "s")
    },
)


@dataclass(frozen=True, slots=True)
class Example:
    """A program that the checker accepts, with its text."""

    text: str
    checked: CheckedProgram


@lru_cache(10_000)
def _parsed(rule: str) -> Rule:
    return parse(rule).rules[0]


def _checked(rules: Sequence[str]) -> CheckedProgram:
    parsed = (replace(_parsed(rule), number=number) for number, rule in enumerate(rules, 1))
    return check(Program(tuple(parsed), "\n".join(rules), "<random>"), CATALOG)


def accepted(rules: Sequence[str]) -> Example:
    """The program made of those rules that the checker accepts beside the ones before them."""
    kept: list[str] = ["p(x) := a(x);", "q(x) := r(x);", "t(x, y) := s(x, y);"]
    checked = _checked(kept)
    for rule in rules:
        try:
            checked = _checked([*kept, rule])
        except ProgramErrors:
            continue
        kept.append(rule)
    return Example("\n".join(kept), checked)


def programs(rules_max: int = 5) -> st.SearchStrategy[Example]:
    """Programs over the events a/1, b/2 and the relations r/1, s/2 that derive p/1, q/1, t/2."""
    return st.lists(_rules(), min_size=1, max_size=rules_max).map(accepted)


def ticked_programs(rules_max: int = 5) -> st.SearchStrategy[Example]:
    """As `programs`, with rules that carry facts to the next tick, some of which only keep them."""
    keeping = st.sampled_from(
        (
            "p(x) @next := p(x);",
            "q(x) @next := q(x) ^ not r(x);",
            "t(x, y) @next := t(x, y) ^ not p(x);",
        )
    )
    rules = _rules() | _rules(_NEXT_MARKS) | keeping
    return st.lists(rules, min_size=1, max_size=rules_max).map(accepted)


@st.composite
def inputs(draw: st.DrawFn) -> dict[str, list[Presence]]:
    """Presences of the inputs of `programs`; events may have sources and be delivered late."""
    found: dict[str, list[Presence]] = {name: [] for name in ("a", "b", "r", "s")}
    values = st.integers(0, 2) | st.none()
    for name, presences in found.items():
        for _ in range(draw(st.integers(0, 3))):
            row = tuple(draw(values) for _ in range(_ARITIES[name]))
            start = draw(st.integers(0, UPPER - 1))
            end = draw(st.none() | st.integers(start + 1, UPPER + 3))
            if name in _EVENTS:
                source = draw(
                    st.sampled_from(((), (), (("provenance", "s1"),), (("provenance", "s2"),)))
                )
                record = Record(name, row, start, end, source)
                start += draw(st.sampled_from((0, 0, 0, 2)))
            else:
                record = Record(name, row)
            if end is None or start < end:
                presences.append(Presence(record, start, END if end is None else end))
    return found
