"""Rules that users run, and the streams that they read, from a fixed seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bench.views.inputs import I64Array
from tidemill.datalog.inputs import InputKind

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
