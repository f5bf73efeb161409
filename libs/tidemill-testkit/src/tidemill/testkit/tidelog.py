"""Random small programs of the language and inputs for them, as Hypothesis strategies."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from itertools import pairwise
from typing import TypeVar

from hypothesis import assume
from hypothesis import strategies as st

from tidemill.datalog.ast import Program, Rule
from tidemill.datalog.check import check
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.diagnostics import ProgramErrors
from tidemill.datalog.inputs import ColumnType, InputSchema, InputSchemas
from tidemill.datalog.parser import parse
from tidemill.datalog.presence import END, Presence
from tidemill.datalog.records import Record, Value
from tidemill.testkit.twins.pointwise import Unsettled, answers

T = TypeVar("T")
UPPER = 12
"""All instants of generated inputs lie in [0, UPPER)."""

_COLUMNS: Mapping[str, tuple[ColumnType, ...]] = {
    "a": ("int",), "b": ("int", "int"), "n": ("text", "int"),
    "r": ("int",), "s": ("int", "int"), "f": ("int", "float"),
    "p": ("int",), "q": ("int",), "t": ("int", "int"), "d": ("text", "float"),
}  # fmt: skip
_EVENTS = ("a", "b", "n")
_RELATIONS = ("r", "s", "f")
_BASE = {
    "p": "p(x) := a(x);", "q": "q(x) := r(x);", "t": "t(x, y) := s(x, y);",
    "d": "d(m, h) := n(m, x) ^ f(x, h);",
}  # fmt: skip
INPUTS = (*_EVENTS, *_RELATIONS)
DERIVED = tuple(_BASE)
NUMBERS = ("a", "b", "r", "s", "p", "q", "t")
"""The predicates whose columns are whole numbers."""


@dataclass(frozen=True, slots=True)
class Forms:
    """The parts of rules; by default every construct that the language has for a rule.

    A form is drawn as often as it is listed. A guard, a mark or a definition is only used where the
    body binds its variables. `whole` are rules that are drawn as they stand, one in `whole_every`.
    """

    guards: Sequence[str] = (
        "x < y", "x != y", "x <= 1", "u <= w", "u + 3 > w", "x + y >= 2", "u >= 2", "x / y >= 1",
        "x < y || x == 1", "z == x + 1", "u < w ^ w <= u + 4", "2 / x == 1", "u == w",
        "y - x == 1 && x > 0", "is_null(x)", "coalesce(x, 1) == 1", "bucket(u, 4) == 4",
        "float(x) * 0.5 < 0.6", "-x < y % 2", "x * y < 3", "greatest(x, y) > 1",
        "length(m) >= x", "contains(m, \"a\")", "starts_with(m, \"a\") || h > 0.5",
        "starts_with(m, \"a\")",
        "lower(m) == \"b\"", "substring(m, x, 1) == \"a\"", "int(m) == x", "m < \"b\"",
        "concat(m, \"b\") != \"ab\"", "h > 0.5", "abs(h) >= 1.5", "floor(h) == x",
        "round(h) > ceil(h) - 1", "text(x) == m", "float(m) > 0.0", "h * x <= 1",
        "ends_with(upper(m), \"A\")", "h == x", "is_null(m)", "coalesce(h, 1.0) >= 1",
        "regex_match(m, \"^a\")", "split(m, \"b\", 0) == \"a\"", "hash(m) % 2 == 0",
        "format(\"{}-{}\", m, x) == \"a-1\"", "root(h) > 0.8",
    )  # fmt: skip
    head_marks: Sequence[str] = (
        "", "", "", "", "", "", "@time(u + 2)", "@time(u)", "@time(3)", "@expires(u + 4)", "~expires",
        "@time(u + 1) @expires(u + 5)", "@count(y)", "@sum(x)", "@min(y)", "@max(x) @count(1)",
        "@set(y)", "@average(x)", "@count_distinct(y)", "@count(y) @expires(u + 3)",
        "@sum(y) @time(u)", "@sum(float(x) / 4.0)", "@provenance(\"k\")", "~provenance",
        "@count(y) ~expires", "~count ~sum ~min ~max ~set ~average", "@extent(x, y, 1)",
        "@earliest(u) @latest(u + 1)", "@extent(u, u + 1, \"s1\")", "@extent(x, x, 2) @count(x)",
        "@set(m)", "@min(m)", "@max(h) @min(h)", "@sum(h)", "@average(h)", "@count(h)",
        "@count_distinct(m) @set(m)", "@provenance(m)", "@sum(h * x)", "@extent(h, h, m)",
    )  # fmt: skip
    atom_marks: Sequence[str] = (
        "", "", "", "", "", "", "@time(u)", "@time(w)", "@time(u)", "~time", "~expires",
        "~time ~expires", "@expires(w)", "@count(y)", "@time(u) ~expires", "@provenance(_)",
        "@min(x)", "@time(4)", "@extent(x, _, _)", "@latest(w)", "@average(_)",
        "@sum(h)", "@average(h)", "@max(h)", "@min(m)", "@set(_) @count_distinct(y)",
        "@earliest(w)", "~provenance", "~count ~extent",
    )  # fmt: skip
    terms: Sequence[str] = ("x", "x", "x", "y", "y", "z", "_", "1", "x + 1", "0", "-1")
    texts: Sequence[str] = ("m", "m", "m", "_", '"a"', "lower(m)")
    floats: Sequence[str] = ("h", "h", "h", "_", "x", "0.5", "1")
    clocks: Sequence[str] = (
        "clock(0, 3) @time(u)", "clock(1, 4) @time(w)", "clock(x, 3) @time(w)", "clock(2, y)",
    )  # fmt: skip
    definitions: Sequence[str] = (
        "z = x + 1", "z = least(x, 1)", "z = y * 2 - x", "z = coalesce(y, 0)", "z = bucket(u, 3)",
        "z = length(m)", "z = int(h)",
    )  # fmt: skip
    whole: Sequence[str] = (
        "t(1, 2);", "p(0) @time(3) @expires(7);", "q(2) @time(5);", "q(1) @expires(6);",
        "t(x, y) @min(x) := s(x, y);", "t(y, x) @min(v + 1) := t(x, y) @min(v) if v < 4;",
        "t(x, z) := t(x, y) ^ t(y, z);", "p(y) := p(x) ^ s(x, y);", "q(x + 1) := q(x) if x < 3;",
        "t(x, y) @max(y) := s(x, y);", "t(x, z) @max(v) := t(x, y) @max(v) ^ s(y, z);",
        "t(x, y) @set(y) := s(x, y);", "t(x, z) @set(v) := t(x, y) @set(v) ^ s(y, z);",
        "p(1) @set(v) @count_distinct(v) := t(x, _) @set(v);",
        "q(x) := t(x, _) @min(v) if v >= 1;", "p(1) @count(x) := q(x) ^ not p(x);",
        "d(\"k\", 0.5) @time(2) @expires(9);", "d(concat(m, \"b\"), h) := d(m, h) if length(m) < 3;",
        "d(m, h / 2.0) := d(m, h) if h > 0.4 ^ h < 9.0;", "q(x) := d(m, h) ^ f(x, h);",
        "p(x) @extent(y, y, \"s\") := s(x, y);", "p(x) @extent(u, u, m) := n(m, x) @time(u);",
        "d(m, h) := n(m, x) ^ f(x, h) if text(x) != m;", "p(x) := f(x, h) if floor(h) <= x;",
        "q(x) := n(m, x) if substring(m, 0, 1) == \"a\";",
    )  # fmt: skip
    whole_every: int = 5
    predicates: Sequence[str] = tuple(_COLUMNS)


FORMS = Forms()
EXTREME = replace(
    FORMS,
    guards=(
        "x + x / 4611686018427387904 > 2", "x + x / 4611686018427387904 < 2", "x - y > 0", "x * y < 3",
        "-x < y % 2", "x % y == 0", "abs(x) > y", "x == y", "h == x", "h * x <= 1.0", "x / y < 1",
        "bucket(x, 3) < y", "floor(h) == x", "float(x) < h", "x < y", "h + h > 0.0", "length(m) > 1",
        "concat(m, m) != \"a\"", "upper(m) == \"a\" ^ x > y",
    ),
    terms=("x", "x", "y", "y", "_", "9223372036854775807", "x + 1", "-9223372036854775807"),
    texts=("m", "m", "_", "\"\u00e9\"", "lower(m)", "concat(m, m)"),
    floats=("h", "h", "_", "x", "9007199254740992.0"),
    clocks=(),
    definitions=(
        "z = x + y", "z = x - y", "z = x * y", "z = x / y", "z = x % y", "z = -x", "z = abs(x)",
        "z = bucket(x, y)", "z = x + x / 4611686018427387904", "z = least(x, y) - 1", "z = round(h)",
        "z = y + y % x",
    ),
    head_marks=(
        "", "", "", "@sum(x)", "@average(x)", "@average(h)", "@sum(h)", "@max(x) @min(y)", "@set(x)",
        "@average(x) @sum(x)", "@set(h)", "@count_distinct(x)", "@max(h)",
    ),
    whole=(
        "q(x) @sum(x) := r(x);", "q(x) @sum(h) := f(x, h);", "p(1) @set(x) := r(x);",
        "p(1) @set(h) := f(_, h);", "p(1) @average(x) @sum(x) := r(x);", "p(2) @average(h) := f(_, h);",
        "q(x) := f(h, _) ^ f(x, h);", "q(x) := r(x) ^ not f(_, x);", "d(m, h) := n(m, _) ^ f(_, h) ^ not d(_, h);",
        "p(1) @count(x) := p(1) @set(s) ^ r(x) if contains(s, x);",
    ),
)  # fmt: skip
"""Rules about values at the borders of 64 bits, of exact floats, and of types."""


@cache
def _numbers(least: int, greatest: int) -> st.SearchStrategy[int]:
    """Whole numbers within bounds; one number alone draws nothing.

    Hypothesis validates each new strategy, at the cost of many draws: strategies are kept.
    """
    return st.just(least) if least == greatest else st.integers(least, greatest)


def _sampled(draw: st.DrawFn, choices: Sequence[T]) -> T:
    """One of the choices; draws as `st.sampled_from`."""
    return choices[draw(_numbers(0, len(choices) - 1))]


@st.composite
def _atom(draw: st.DrawFn, forms: Forms) -> str:
    if forms.clocks and draw(_numbers(0, 9)) == 0:
        return _sampled(draw, forms.clocks)
    name = _sampled(draw, forms.predicates)
    drawn = {"int": forms.terms, "text": forms.texts, "float": forms.floats}
    terms = [_sampled(draw, drawn[kind]) for kind in _COLUMNS[name]]
    return f"{name}({', '.join(terms)}) {_sampled(draw, forms.atom_marks)}".strip()


@cache
def _atoms(forms: Forms, least: int, most: int) -> st.SearchStrategy[list[str]]:
    return st.lists(_atom(forms), min_size=least, max_size=most)


@cache
def _places(count: int, most: int) -> st.SearchStrategy[list[int]]:
    """Up to `most` places in a sequence of `count` elements."""
    return st.lists(_numbers(0, count - 1), max_size=most)


_FLAGS = st.booleans()
_CARRYING = Forms(
    head_marks=(
        "@next", "@next", "@next", "@count(y) @next", "~expires @next", "@expires(u + 3) @next",
    ),
    whole=(),
)  # fmt: skip


@lru_cache(10_000)
def _names(text: str) -> frozenset[str]:
    """The variables that a piece of a rule names."""
    return frozenset(re.findall(r"\b[uwxyzmh]\b", text))


@st.composite
def _rules(draw: st.DrawFn, forms: Forms) -> str:
    if forms.whole and draw(_numbers(1, forms.whole_every)) == 1:
        return _sampled(draw, forms.whole)
    return _draw_rule(draw, draw(_atoms(forms, 1, 3)), forms)


def _draw_rule(draw: st.DrawFn, positive: Sequence[str], forms: Forms) -> str:
    """A rule with these positive atoms."""
    name = _sampled(draw, [name for name in DERIVED if name in forms.predicates])
    body = list(positive)
    bound = _names(" ".join(body))
    where = ""
    if definitions := [
        d for d in forms.definitions if _names(d) - {"z"} <= bound and "z" not in bound
    ]:
        where = _sampled(draw, ("", "", "", *definitions))
        bound |= _names(where)
    for absent in draw(_atoms(forms, 0, 1)):
        unbound = _names(absent) - bound if draw(_FLAGS) else ()
        for variable in unbound:
            absent = re.sub(rf"\b{variable}\b", "_", absent)
        body.append(f"not {absent.split(' ~')[0]}")
    guards = [guard for guard in forms.guards if _names(guard) <= bound]
    guard = [guards[at] for at in draw(_places(len(guards), 2))] if guards else []
    condition = f" if {' ^ '.join(guard)}" if guard else ""
    numbers = sorted(bound & {"x", "y", "z"})
    columns = {
        "int": (*numbers, *numbers, "1"), "text": ("m", "\"k\"") if "m" in bound else ("\"k\"",),
        "float": ("h", "h", *numbers) if "h" in bound else (*numbers, "0.5"),
    }  # fmt: skip
    terms = [_sampled(draw, columns[kind]) for kind in _COLUMNS[name]]
    marks = [m for m in forms.head_marks if _names(m) <= bound and not _names(m) & set(terms)]
    mark = _sampled(draw, marks) if marks else ""
    defined = f" where {where}" if where else ""
    return f"{name}({', '.join(terms)}) {mark} := {' ^ '.join(body)}{condition}{defined};"


CATALOG = InputSchemas(
    {
        name: InputSchema(
            name,
            "events" if name in _EVENTS else "relation",
            tuple(("", kind) for kind in _COLUMNS[name]),
        )
        for name in INPUTS
    },
)


@dataclass(frozen=True, slots=True)
class Example:
    """A program that the checker accepts, with its text."""

    text: str
    checked: CheckedProgram = field(repr=False)


@lru_cache(10_000)
def _parsed(rule: str) -> Rule:
    return parse(rule).rules[0]


@lru_cache(100)
def _checked(rules: tuple[str, ...]) -> CheckedProgram:
    parsed = (replace(_parsed(rule), number=number) for number, rule in enumerate(rules, 1))
    return check(Program(tuple(parsed), "\n".join(rules), "<random>"), CATALOG)


def accepted(
    rules: Sequence[str],
    fits: Callable[[CheckedProgram], bool] | None = None,
    derived: Sequence[str] = DERIVED,
) -> Example:
    """The program made of those rules that the checker, and `fits`, accept beside the ones before
    them.
    """
    kept = [_BASE[name] for name in derived]
    checked = _checked(tuple(kept))
    for rule in rules:
        try:
            longer = _checked((*kept, rule))
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
    """Programs over the events a/1, b/2, n/2 and the relations r/1, s/2, f/2 that derive p/1, q/1,
    t/2, d/2.
    """
    rules = st.lists(_rules(forms), min_size=rules_min, max_size=rules_max)
    derived = [name for name in DERIVED if name in forms.predicates]
    return rules.map(lambda drawn: accepted(drawn, fits, derived))


_JOINED = replace(
    FORMS,
    head_marks=("", "", "", "", "", *FORMS.head_marks),
    guards=("x < y", "x < y", "x != y", "x != y", *FORMS.guards),
)
_SHARED = (
    "a(x)", "b(x, y)", "b(y, x)", "b(x, _)", "r(x)", "r(y)", "s(x, y)", "s(x, y)", "s(y, x)", "s(x, z)",
    "s(1, x)", "a(x) @time(u)", "b(x, y) @time(w)", "n(m, x)", "f(x, h)", "f(x, _)", "s(x, y + 1)",
    "p(x)", "t(x, y)", "d(m, h)", "a(x) ~expires", "b(x, y) @expires(w)",
)  # fmt: skip
"""Atoms of joins that several rules have."""


_JOINS = st.lists(st.sampled_from(_SHARED), min_size=2, max_size=3)
_JOINED_ATOM = _atom(_JOINED)
_RENAMINGS = st.permutations("xyz")


def _renamed(text: str, names: Mapping[str, str]) -> str:
    return re.sub(r"\b[xyz]\b", lambda name: names[name[0]], text)


@st.composite
def _rules_alike(draw: st.DrawFn) -> list[str]:
    """Rules of which several have one join: its atoms in another order, its variables with other
    names.
    """
    joins = [draw(_JOINS) for _ in range(draw(_numbers(1, 2)))]
    found = []
    for _ in range(draw(_numbers(3, 6))):
        body = list(draw(st.permutations(_sampled(draw, joins))))
        if draw(_numbers(0, 2)) == 0:
            body.append(draw(_JOINED_ATOM))
        names = dict(zip("xyz", draw(_RENAMINGS), strict=True))
        found.append(_draw_rule(draw, [_renamed(atom, names) for atom in body], _JOINED))
    return found


def programs_alike() -> st.SearchStrategy[Example]:
    """Examples of `programs`, of which many have one join in several rules."""
    return _rules_alike().map(accepted)


def ticked_programs(
    rules_max: int = 5,
    *,
    sends: bool = False,
    fits: Callable[[CheckedProgram], bool] | None = None,
) -> st.SearchStrategy[Example]:
    """Examples of `programs`, with rules that carry facts to the next tick; some only keep them.

    With `sends` there are rules that send facts to nodes, some of them to none that there is.
    """
    keeping = st.sampled_from(
        (
            "p(x) @next := p(x);",
            "q(x) @next := q(x) ^ not r(x);",
            "t(x, y) @next := t(x, y) ^ not p(x);",
        )
    )
    rules = _rules(FORMS) | _rules(_CARRYING) | keeping
    if sends:
        rules |= st.sampled_from(
            (
                "p(x) @async(0) := q(x);", "q(x) @async(x) := p(x) ^ not r(x);",
                "t(x, y) @async(y) := s(x, y);", "q(y) @async(1 - x) := b(x, y) @time(u) if u > 2;",
                "p(x) @count(y) @async(1) := t(x, y);", "d(m, h) @async(x) := n(m, x) ^ f(_, h);",
            )
        )  # fmt: skip
    drawn = st.lists(rules, min_size=1, max_size=rules_max)
    return drawn.map(lambda found: accepted(found, fits))


_BORDERS: Mapping[str, Sequence[Value]] = {
    "int": (
        *(sign * ((1 << bits) + off) for bits in (53, 62) for sign in (1, -1) for off in (-1, 0, 1)),
        (1 << 63) - 1, 1 - (1 << 63), -(1 << 63), 0, 1, -1, 3, None,
    ),
    "float": (
        2.0**53, -(2.0**53), 2.0**62, 2.0**63, -(2.0**63), 1e308, -1e308, 5e-324, 0.0, 1.0, 0.5,
        0.1, None,
    ),
    "text": ("", "\u00e9", "\U0001f600", "a", "\u1e9e", "\u0390" + "\u0301" * 29, None),
}  # fmt: skip
"""Values at the borders of whole numbers, of floats that are exact, and of texts."""


_ORIGINS: Sequence[tuple[tuple[str, str], ...]] = (
    (), (), (("provenance", "s1"),), (("provenance", "s2"),)
)  # fmt: skip
"""Arguments of events, beside those of their columns."""
_REVISIONS: Sequence[tuple[tuple[str, Value], ...]] = (
    (("count", 0),), (("count", 0),), (("count", 0),), (("count", 1),), (("count", 2),),
    (("count", 3),), (("count_distinct", 1),),
    (("count", 1), ("provenance", "s1")), (("count_distinct", 2), ("provenance", "s2")), (),
)  # fmt: skip
"""Lattices that one event carries at one time, and others of them at another."""


@cache
def _values(nulls: bool, extreme: bool) -> dict[str, st.SearchStrategy[Value]]:
    """Values of a column, by its type."""
    if extreme:
        return {kind: st.sampled_from(known) for kind, known in _BORDERS.items()}
    small = st.integers(0, 2)
    odd = st.sampled_from((None, None, None, -1, 2**63 - 1))
    return {
        "int": small | small | odd if nulls else small,
        "text": st.sampled_from(("a", "B", "", "äb", "1", None)),
        "float": st.sampled_from((0.5, 0.5, 1.0, 2.0, -1.5, 0.1, 1e308, None)),
    }


@cache
def _ends(start: int) -> st.SearchStrategy[int | None]:
    """Ends of a presence that begins at `start`; None is never."""
    return st.none() | st.integers(start + 1, UPPER + 3)


@st.composite
def inputs(
    draw: st.DrawFn,
    names: Sequence[str] = INPUTS,
    *,
    nulls: bool = True,
    late: bool = True,
    rows_min: int = 0,
    rows_max: int = 3,
    extreme: bool = False,
    revised: bool = False,
) -> dict[str, list[Presence]]:
    """Presences of the inputs of `programs`; events may have sources and be delivered late.

    `extreme` values lie at the borders of what there is. Counts that `revised` events carry change
    while they are present, as those of another view do.
    """
    found: dict[str, list[Presence]] = {name: [] for name in names}
    values = _values(nulls, extreme)
    for name, presences in found.items():
        for _ in range(draw(_numbers(rows_min, rows_max))):
            row = tuple(draw(values[kind]) for kind in _COLUMNS[name])
            start = draw(_numbers(0, UPPER - 1))
            end = draw(_ends(start))
            if name in _EVENTS:
                record = Record(name, row, start, end, _sampled(draw, _ORIGINS))
                start += _sampled(draw, (0, 0, 0, 2)) if late else 0
            else:
                record = Record(name, row)
            if end is None or start < end:
                presences.append(Presence(record, start, END if end is None else end))
        if revised and name in _EVENTS:
            found[name] = [each for whole in presences for each in _revised(draw, whole)]
    return found


def _revised(draw: st.DrawFn, whole: Presence) -> Iterator[Presence]:
    """One event in stretches that follow each other, each with other lattices beside it."""
    most = int(max(whole.start, min(whole.end, UPPER)))
    cuts = {draw(_numbers(int(whole.start), most)) for _ in range(draw(_numbers(0, 2)))}
    stops = sorted(cuts | {whole.start, whole.end})
    for start, end in pairwise(stops):
        carried = _sampled(draw, _REVISIONS)
        yield Presence(replace(whole.record, parafacts=carried), start, end)


def answers_from_scratch(
    example: Example, facts: Mapping[str, Sequence[Presence]]
) -> list[dict[str, set[str]]]:
    """Facts at each instant from -1 to UPPER - 1, and under `errors` the failures, by the twin.

    An example that does not settle is left out.
    """
    try:
        found = answers(example.checked, facts, 0, UPPER)
    except Unsettled:
        assume(False)
        raise
    return [
        {**{name: set(at.records.get(name, ())) for name in DERIVED}, "errors": set(at.errors)}
        for at in found
    ]
