"""Random small programs of the language and inputs for them, as Hypothesis strategies."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
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
DERIVED = ("p", "q", "t")


@dataclass(frozen=True, slots=True)
class Forms:
    """What rules are made of; by default all that the language has for a rule.

    A form is drawn as often as it is listed. A guard, a mark or a definition is only used where the body
    binds what it names. `whole` are rules that are drawn as they stand.
    """

    guards: Sequence[str] = (
        "x < y", "x != y", "x <= 1", "u <= w", "u + 3 > w", "x + y >= 2", "u >= 2", "x / y >= 1",
        "x < y || x == 1", "z == x + 1", "u < w ^ w <= u + 4", "2 / x == 1", "u == w",
        "y - x == 1 && x > 0", "is_null(x)", "coalesce(x, 1) == 1", "bucket(u, 4) == 4",
        "float(x) * 0.5 < 0.6", "-x < y % 2",
    )  # fmt: skip
    head_marks: Sequence[str] = (
        "", "", "", "", "", "", "@time(u + 2)", "@time(u)", "@time(3)", "@expires(u + 4)", "~expires",
        "@time(u + 1) @expires(u + 5)", "@count(y)", "@sum(x)", "@min(y)", "@max(x) @count(1)",
        "@set(y)", "@average(x)", "@count_distinct(y)", "@count(y) @expires(u + 3)",
        "@sum(y) @time(u)", "@sum(float(x) / 4.0)", "@provenance(\"k\")", "~provenance",
        "@count(y) ~expires", "~count ~sum ~min ~max ~set ~average", "@extent(x, y, 1)",
        "@earliest(u) @latest(u + 1)",
    )  # fmt: skip
    atom_marks: Sequence[str] = (
        "", "", "", "", "", "", "@time(u)", "@time(w)", "@time(u)", "~time", "~expires",
        "~time ~expires", "@expires(w)", "@count(y)", "@time(u) ~expires", "@provenance(_)",
        "@min(x)", "@time(4)", "@extent(x, _, _)", "@latest(w)", "@average(_)",
    )  # fmt: skip
    terms: Sequence[str] = ("x", "x", "x", "y", "y", "z", "_", "1", "x + 1", "0")
    clocks: Sequence[str] = (
        "clock(0, 3) @time(u)", "clock(1, 4) @time(w)", "clock(x, 3) @time(w)", "clock(2, y)",
    )  # fmt: skip
    definitions: Sequence[str] = (
        "z = x + 1", "z = least(x, 1)", "z = y * 2 - x", "z = coalesce(y, 0)", "z = bucket(u, 3)",
    )  # fmt: skip
    whole: Sequence[str] = (
        "t(1, 2);", "p(0) @time(3) @expires(7);", "q(2) @time(5);", "q(1) @expires(6);",
        "t(x, y) @min(x) := s(x, y);", "t(y, x) @min(v + 1) := t(x, y) @min(v) if v < 4;",
        "t(x, z) := t(x, y) ^ t(y, z);", "p(y) := p(x) ^ s(x, y);", "q(x + 1) := q(x) if x < 3;",
        "t(x, y) @max(y) := s(x, y);", "t(x, z) @max(v) := t(x, y) @max(v) ^ s(y, z);",
        "t(x, y) @set(y) := s(x, y);", "t(x, z) @set(v) := t(x, y) @set(v) ^ s(y, z);",
        "q(x) := t(x, _) @min(v) if v >= 1;", "p(1) @count(x) := q(x) ^ not p(x);",
    )  # fmt: skip
    predicates: Sequence[str] = tuple(_ARITIES)


FORMS = Forms()


@st.composite
def _atoms(draw: st.DrawFn, forms: Forms) -> str:
    if forms.clocks and draw(st.integers(0, 9)) == 0:
        return draw(st.sampled_from(forms.clocks))
    name = draw(st.sampled_from(forms.predicates))
    terms = [draw(st.sampled_from(forms.terms)) for _ in range(_ARITIES[name])]
    return f"{name}({', '.join(terms)}) {draw(st.sampled_from(forms.atom_marks))}".strip()


_CARRYING = Forms(
    head_marks=(
        "@next", "@next", "@next", "@count(y) @next", "~expires @next", "@expires(u + 3) @next",
    ),
    whole=(),
)  # fmt: skip


def _names(text: str) -> set[str]:
    """The variables that a piece of a rule names."""
    return set(re.findall(r"\b[uwxyz]\b", text))


@st.composite
def _rules(draw: st.DrawFn, forms: Forms) -> str:
    if forms.whole and draw(st.integers(0, 4)) == 0:
        return draw(st.sampled_from(forms.whole))
    name = draw(st.sampled_from(DERIVED))
    body = draw(st.lists(_atoms(forms), min_size=1, max_size=3))
    bound = _names(" ".join(body))
    where = ""
    if definitions := [
        d for d in forms.definitions if _names(d) - {"z"} <= bound and "z" not in bound
    ]:
        where = draw(st.sampled_from(("", "", "", *definitions)))
        bound |= _names(where)
    for absent in draw(st.lists(_atoms(forms), max_size=1)):
        body.append(f"not {absent.split(' ~')[0]}")
    guards = [guard for guard in forms.guards if _names(guard) <= bound]
    guard = draw(st.lists(st.sampled_from(guards), max_size=2)) if guards else []
    condition = f" if {' ^ '.join(guard)}" if guard else ""
    columns = sorted(bound & {"x", "y", "z"})
    terms = [draw(st.sampled_from((*columns, *columns, "1"))) for _ in range(_ARITIES[name])]
    marks = [m for m in forms.head_marks if _names(m) <= bound and not _names(m) & set(terms)]
    mark = draw(st.sampled_from(marks)) if marks else ""
    defined = f" where {where}" if where else ""
    return f"{name}({', '.join(terms)}) {mark} := {' ^ '.join(body)}{condition}{defined};"


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


def accepted(rules: Sequence[str], fits: Callable[[CheckedProgram], bool] | None = None) -> Example:
    """The program made of those rules that the checker, and `fits`, accept beside the ones before them."""
    kept: list[str] = ["p(x) := a(x);", "q(x) := r(x);", "t(x, y) := s(x, y);"]
    checked = _checked(kept)
    for rule in rules:
        try:
            longer = _checked([*kept, rule])
        except ProgramErrors:
            continue
        if fits is None or fits(longer):
            checked = longer
            kept.append(rule)
    return Example("\n".join(kept), checked)


def programs(
    rules_max: int = 5,
    forms: Forms = FORMS,
    fits: Callable[[CheckedProgram], bool] | None = None,
    rules_min: int = 1,
) -> st.SearchStrategy[Example]:
    """Programs over the events a/1, b/2 and the relations r/1, s/2 that derive p/1, q/1, t/2."""
    rules = st.lists(_rules(forms), min_size=rules_min, max_size=rules_max)
    return rules.map(lambda drawn: accepted(drawn, fits))


def ticked_programs(rules_max: int = 5) -> st.SearchStrategy[Example]:
    """As `programs`, with rules that carry facts to the next tick, some of which only keep them."""
    keeping = st.sampled_from(
        (
            "p(x) @next := p(x);",
            "q(x) @next := q(x) ^ not r(x);",
            "t(x, y) @next := t(x, y) ^ not p(x);",
        )
    )
    rules = _rules(FORMS) | _rules(_CARRYING) | keeping
    return st.lists(rules, min_size=1, max_size=rules_max).map(accepted)


@st.composite
def inputs(
    draw: st.DrawFn,
    names: Sequence[str] = ("a", "b", "r", "s"),
    *,
    nulls: bool = True,
    late: bool = True,
    rows_min: int = 0,
    rows_max: int = 3,
) -> dict[str, list[Presence]]:
    """Presences of the inputs of `programs`; events may have sources and be delivered late."""
    found: dict[str, list[Presence]] = {name: [] for name in names}
    values = st.integers(0, 2) | st.none() if nulls else st.integers(0, 2)
    for name, presences in found.items():
        for _ in range(draw(st.integers(rows_min, rows_max))):
            row = tuple(draw(values) for _ in range(_ARITIES[name]))
            start = draw(st.integers(0, UPPER - 1))
            end = draw(st.none() | st.integers(start + 1, UPPER + 3))
            if name in _EVENTS:
                source = draw(
                    st.sampled_from(((), (), (("provenance", "s1"),), (("provenance", "s2"),)))
                )
                record = Record(name, row, start, end, source)
                start += draw(st.sampled_from((0, 0, 0, 2))) if late else 0
            else:
                record = Record(name, row)
            if end is None or start < end:
                presences.append(Presence(record, start, END if end is None else end))
    return found
