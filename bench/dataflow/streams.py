"""Inputs of the measurements: streams of the rules that users run, and the demo's views."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.views.flight_inputs import inputs, programs, schemas
from tidemill.arrangement.kernels import I64Array
from tidemill.datalog.check import check
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.inputs import InputKind, InputSchema, InputSchemas
from tidemill.datalog.parser import parse
from tidemill.datalog.presence import END, Presence
from tidemill.datalog.records import Record

RULES: Mapping[str, tuple[str, Mapping[str, tuple[InputKind, tuple[str, ...]]]]] = {
    "resample": (
        "mean(tank: n) @average(l) @sum(f) @time(tc - period) @expires(tc + 60000) :="
        " r(tank: n, level: l, flow: f) @time(te) ^ clock(offset, period) @time(tc)"
        " if te < tc ^ te >= tc - period where offset = 0, period = 1000;",
        {"r": ("events", ("tank", "level", "flow", "at"))},
    ),
    "hot": (
        "hot(tank: n, level: l, at: t) := r(tank: n, level: l, at: t) if l >= 9900;",
        {"r": ("events", ("tank", "level", "flow", "at"))},
    ),
    "join": (
        "paid(payment: i, order: o, amount: a) @time(tp) @expires(tp + 1000) :="
        " o(id: o, amount: a) @time(to) ^ p(id: i, order: o) @time(tp) if tp >= to;",
        {"o": ("events", ("id", "amount", "at")), "p": ("events", ("id", "order", "at"))},
    ),
}
LIFE_MS = {"r": 2_000, "o": 10_000, "p": 10_000}
RATE = 20
"""Records of a topic in a millisecond."""


@dataclass(frozen=True)
class Rows:
    """Facts of one input by time: arguments as whole numbers, time and end of each."""

    arguments: Sequence[I64Array]
    times: I64Array
    ends: I64Array

    def slice(self, first: int, last: int) -> Rows:
        """Some of them."""
        parts = [column[first:last] for column in self.arguments]
        return Rows(parts, self.times[first:last], self.ends[first:last])


def checked(name: str) -> CheckedProgram:
    """One of the rules, over inputs of whole numbers."""
    text, read = RULES[name]
    found = {
        each: InputSchema(each, kind, tuple((column, "int") for column in columns))
        for each, (kind, columns) in read.items()
    }
    return check(parse(text), InputSchemas(found))


def stream(name: str, n: int) -> dict[str, Rows]:
    """The inputs of a rule, each of `n` rows, 20,000 of them a second, by time."""
    draw = np.random.default_rng(7)
    at = np.sort(np.arange(n) // RATE + draw.integers(0, 200, n))
    if name != "join":
        columns = [
            draw.integers(0, 1_000, n),
            draw.integers(0, 10_000, n),
            draw.integers(0, 1_000, n),
            at,
        ]
        return {"r": Rows(columns, at, at + LIFE_MS["r"])}
    number = np.arange(n)
    back = np.where(number % 3 > 0, number - draw.integers(0, 150_000, n), n + number)
    orders = Rows([number, draw.integers(0, 10_000, n), at], at, at + LIFE_MS["o"])
    return {"o": orders, "p": Rows([number, np.maximum(back, 0), at], at, at + LIFE_MS["p"])}


def steps_of(rows: Mapping[str, Rows], size: int) -> list[tuple[int, dict[str, Rows]]]:
    """Steps of about `size` rows in all: an upper, and what begins below it."""
    per_input = max(1, size // len(rows))
    longest = max(rows.values(), key=lambda each: len(each.times))
    uppers = [int(t) for t in longest.times[per_input::per_input]]
    uppers = sorted({*uppers, max(int(each.times[-1]) for each in rows.values()) + 1})
    found, done = [], dict.fromkeys(rows, 0)
    for upper in uppers:
        given = {}
        for name, each in rows.items():
            last = int(np.searchsorted(each.times, upper))
            given[name] = each.slice(done[name], last)
            done[name] = last
        found.append((upper, given))
    return found


def presences_of(name: str, rows: Rows) -> list[Presence]:
    """Rows as records."""
    columns = [column.tolist() for column in rows.arguments]
    return [
        Presence(Record(name, arguments, time, end), time, end)
        for arguments, time, end in zip(
            zip(*columns, strict=True), rows.times.tolist(), rows.ends.tolist(), strict=True
        )
    ]


def demo() -> tuple[dict[str, CheckedProgram], Mapping[str, Sequence[Presence]]]:
    """The views of the demo, and a month of their inputs by time."""
    with tempfile.TemporaryDirectory() as directory:
        given = inputs(Path(directory), 1)
    ordered = {name: sorted(found, key=lambda each: each.start) for name, found in given.items()}
    return programs(), ordered


__all__ = [
    "END",
    "RULES",
    "Rows",
    "checked",
    "demo",
    "presences_of",
    "schemas",
    "steps_of",
    "stream",
]
