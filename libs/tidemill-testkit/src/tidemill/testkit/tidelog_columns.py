"""Random programs of the shapes that columns evaluate, over many typed rows, as Hypothesis
strategies.
"""

from __future__ import annotations

from random import Random  # noqa: TID251  seeded by Hypothesis

from hypothesis import strategies as st

from tidemill.datalog.check import check
from tidemill.datalog.diagnostics import ProgramErrors
from tidemill.datalog.inputs import InputSchema, InputSchemas
from tidemill.datalog.parser import parse
from tidemill.datalog.presence import END, Presence
from tidemill.datalog.records import Record, Value
from tidemill.testkit.tidelog import Example

UPPER = 60
"""All instants lie in [0, UPPER)."""

_CATALOG = InputSchemas(
    {
        "reading": InputSchema(
            "reading", "events", (("sensor", "text"), ("value", "float"), ("step", "int"))
        ),
        "alarm": InputSchema("alarm", "events", (("sensor", "text"), ("code", "int"))),
        "site": InputSchema("site", "relation", (("sensor", "text"), ("city", "text"))),
        "muted": InputSchema("muted", "relation", (("code", "int"), ("flag", "bool"))),
        "huge": InputSchema("huge", "relation", (("value", "int"),)),
    }
)
_RULES = (
    "located(s, c, v) := reading(s, v, _) ^ site(s, c);",
    "located(s, c, v) := reading(s, v, n) ^ site(s, c) if n > 2 ^ v < 5.5;",
    "both(s, v, k) := reading(s, v, n) @time(t) ^ alarm(s, k) @time(u) if t <= u ^ u < t + 7;",
    "both(s, v, k) := reading(s, v, k) ^ alarm(s, k);",
    "loud(s, k) := alarm(s, k) ^ not muted(k, _);",
    "loud(s, k) @time(t + 3) := alarm(s, k) @time(t) ^ not muted(k, true);",
    "loud(s, n) @time(bucket(t, 5)) := reading(s, _, n) @time(t) ^ site(s, _);",
    "kept(s, k) @expires(t + 9) := alarm(s, k) @time(t);",
    "kept(s, 1) @expires(t + n) := reading(s, v, n) @time(t) ^ not alarm(s, n) if v > 0.0;",
    "kept(s, k) ~expires := alarm(s, k) ^ site(s, \"oslo\");",
    "mean(s) @average(v) @time(c - 2) := reading(s, v, _) @time(t) ^ clock(0, 4) @time(c) if t < c ^ t >= c - 4;",
    "mean(s) @average(v) @count(v) @time(c) @expires(c + 8) := reading(s, v, _) @time(t) ^ clock(1, 5) @time(c) if t < c ^ t >= c - 5;",
    "mean(s) @average(n) := reading(s, _, n);",
    "total(c) @sum(v) @count(v) @min(v) @max(n) := reading(s, v, n) ^ site(s, c);",
    "sums(c) @sum(n) @latest(n) := reading(s, _, n) ^ site(s, c);",
    "sums(s) @sum(k) @time(t) := alarm(s, k) @time(t);",
    "large(c) := total(c) @sum(x) if x > 12;",
    "large(c) := total(c) @sum(x) ^ site(s, c) ^ alarm(s, k) if k < 3 ^ x != 2;",
    "quiet(s) := reading(s, _, _) ^ not large(s) ^ not kept(s, 3);",
    "step(a, b) := reading(s, _, a) ^ reading(s, _, b) @expires(e) if b == a + 1;",
    "step(a, a) := muted(a, f) if f || a > 3;",
    "named(concat(s, \"-\", c), length(s)) := site(s, c) if s < c || starts_with(c, \"o\");",
    "named(upper(s), length(concat(s, text(n)))) := reading(s, _, n) if contains(s, \"é\") || s >= \"c\";",
    "named(substring(s, n - 1, 2), int(v)) := reading(s, v, n) if n > 0 ^ not_empty where not_empty = length(s) > 0;",
    "named(coalesce(s, c, \"none\"), coalesce(length(c), -1)) := site(s, c);",
    "named(least(s, c), greatest(length(s), length(c), 2)) := site(s, c) if ends_with(lower(c), \"o\");",
    "named(text(v), round(v * 2.0)) := reading(_, v, _);",
    "named(substring(s, k - 3, 1), k) := alarm(s, k);",
    "large(s) := reading(s, v, n) if n != 0 && 6 / n > 2 || v / float(n + 1) > 3.0;",
    "large(s) := reading(s, v, n) if 6 / n > 2;",
    "large(text(float(n) - v)) := reading(s, v, n) if floor(v) <= n ^ ceil(v) > abs(n - 4);",
    "step(a * b, a - b) := huge(a) ^ huge(b) if a < b || b > -2;",
    "step(a, b) := huge(a) ^ muted(b, _) if a + b > 7 && (b == 0 || a % b == 1);",
    "step(-a, bucket(a, b + 1)) := huge(a) ^ muted(b, _);",
    "step(bucket(t, k), k) := alarm(_, k) @time(t) if k > 1;",
    "kept(s, 1) @expires(t + k * k) := alarm(s, k) @time(t) if int(concat(\"1\", text(k))) > 12;",
)  # fmt: skip
_BASE = (
    "total(c) @sum(v) @count(v) @min(v) @max(n) := reading(s, v, n) ^ site(s, c);",
    "large(c) := total(c) @sum(x) if x > 12.0;",
    "kept(s, k) @expires(t + 9) := alarm(s, k) @time(t);",
)
_ALIKE = (
    "located(s, c, v) := reading(s, v, _) ^ site(s, c);",
    "both(x, w, n) := site(x, _) ^ reading(x, w, n) if w < 5.5;",
    "named(c, m) := reading(s, w, m) ^ site(s, c) ^ not muted(m, _) if s != c;",
    "sums(c) @sum(n) @latest(n) := reading(s, _, n) ^ site(s, c);",
    "mean(c) @average(v) := site(s, c) ^ reading(s, v, n) if n != 3 ^ s != \"a\";",
    "loud(s, k) := alarm(s, k) @time(t) ^ reading(s, _, k) @time(t);",
    "loud(z, n) @time(u + 3) := reading(z, v, n) @time(u) ^ alarm(z, n) @time(u) if v > 0.0;",
    "quiet(c) @expires(t + 20) := reading(s, _, n) ^ site(s, c) ^ alarm(s, n) @time(t);",
    "step(n, k) := reading(s, _, n) ^ site(s, c) ^ alarm(c, k);",
    "step(k, k) := alarm(s, k) ^ site(s, c) ^ alarm(c, k);",
    "large(c) := alarm(x, k) ^ site(x, y) ^ alarm(y, k) ^ site(y, c);",
)  # fmt: skip
_TEXTS = ("a", "b", "c", "d", "oslo", "é", "Straße", "", None)
_HUGE = (0, 1, -1, 7, 10**9, -(10**10), (1 << 62) + 1, (1 << 63) - 1, -(1 << 63), None)


def bulk_programs() -> st.SearchStrategy[Example]:
    """Programs of joins, windows, resampling, negation, own expiries and aggregates, in several
    strata.
    """
    return st.lists(st.sampled_from(_RULES), min_size=1, max_size=6, unique=True).map(_example)


def programs_alike() -> st.SearchStrategy[Example]:
    """Programs of which many have one join in several rules."""
    return st.lists(st.sampled_from(_ALIKE), min_size=2, max_size=6, unique=True).map(_example)


def _example(rules: list[str]) -> Example:
    """The program of those rules that the checker accepts beside the ones before them."""
    kept = list(_BASE)
    checked = check(parse("\n".join(kept)), _CATALOG)
    for rule in rules:
        try:
            checked = check(parse("\n".join([*kept, rule])), _CATALOG)
        except ProgramErrors:
            continue
        kept.append(rule)
    return Example("\n".join(kept), checked)


@st.composite
def bulk_inputs(draw: st.DrawFn) -> dict[str, list[Presence]]:
    """Up to some hundred rows, from one seed, with nulls, repeats, and ends that nothing
    reaches.
    """
    rng = Random(draw(st.integers(0, 1 << 30)))
    found: dict[str, list[Presence]] = {name: [] for name in _CATALOG.schemas}
    values: list[float | None] = [
        *(rng.choice((-1, 1)) * rng.random() * 9 for _ in range(6)),
        None,
        0.0,
        0.1,
    ]
    for _ in range(draw(st.integers(0, 60))):
        row: tuple[Value, ...] = (rng.choice(_TEXTS), rng.choice(values), rng.randrange(6))
        _add(found["reading"], rng, "reading", row, events=True)
        _add(found["alarm"], rng, "alarm", (rng.choice(_TEXTS), rng.randrange(5)), events=True)
    for _ in range(draw(st.integers(0, 9))):
        _add(found["site"], rng, "site", (rng.choice(_TEXTS), rng.choice(_TEXTS)), events=False)
        _add(found["muted"], rng, "muted", (rng.randrange(5), rng.random() < 0.5), events=False)
    huge = _HUGE[: rng.choice((5, 6, len(_HUGE)))]
    for _ in range(draw(st.integers(0, 4))):
        _add(found["huge"], rng, "huge", (rng.choice(huge),), events=False)
    return found


def _add(
    found: list[Presence], rng: Random, name: str, row: tuple[Value, ...], *, events: bool
) -> None:
    start = rng.randrange(UPPER)
    end = None if rng.random() < 0.2 else start + rng.randrange(1, 15)
    record = Record(name, row, start, end) if events else Record(name, row)
    found.append(Presence(record, start, END if end is None else end))
