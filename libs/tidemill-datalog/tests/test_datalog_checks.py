"""Static checks: what each code refuses, at which place, and the near misses that it accepts.

`«` marks the place that the error has to name, where the language fixes one. Predicates that no
rule derives are relations in `RELATIONS`, events in `EVENTS`, and described by a schema in
`DESCRIBED`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tidemill.datalog import check_definitions
from tidemill.datalog.ast import Expression, Span, walk
from tidemill.datalog.check import check
from tidemill.datalog.diagnostics import SHOWN_MAX, Diagnostic, ProgramErrors
from tidemill.datalog.inputs import InputSchema, InputSchemas
from tidemill.datalog.parser import DEPTH_MAX, parse

RELATIONS = InputSchemas(closed=False, default_kind="relation")
EVENTS = InputSchemas(closed=False, default_kind="events")
DESCRIBED = InputSchemas(
    {
        "t": InputSchema("t", "relation", (("k", "text"), ("v", "int"))),
        "n": InputSchema("n", "relation", (("x", "int"),)),
        "f": InputSchema("f", "relation", (("x", "float"),)),
        "s": InputSchema("s", "relation", (("x", "text"),)),
        "b": InputSchema("b", "relation", (("x", "bool"),)),
        "e": InputSchema("e", "events", (("k", "text"), ("v", "int"))),
        "other": InputSchema("other", "events", (("k", "text"),), "elsewhere"),
    }
)

REFUSED = [
    # S101: a head variable without a value.
    ("S101", RELATIONS, "p(x, «y) := q(x);"),
    ("S101", RELATIONS, "p(x + «y) := q(x);"),
    ("S101", RELATIONS, "p() @sum(«y) := q(x);"),
    ("S101", RELATIONS, "p(x) @async(«n) := q(x);"),
    ("S101", EVENTS, "p(x) @time(«t + 1) := q(x);"),
    ("S101", EVENTS, "p(x) @expires(«t) := q(x);"),
    # S102: a guard variable without a value, and a condition inside an atom.
    ("S102", RELATIONS, "p(x) := q(x) if «y > x;"),
    ("S102", RELATIONS, "p(x) := q(x) if x > 1 ^ abs(«y) > 1;"),
    ("S102", RELATIONS, "p(x) := q(x, «y + 1);"),
    ("S102", RELATIONS, "p(x) := q(x) if «_ > 1;"),
    ("S102", RELATIONS, "p(y) := q(x) if «y > 1;"),
    # S103: bad definitions.
    ("S103", RELATIONS, "p(a) := q(x) where a = x, a = x + 1;"),
    ("S103", RELATIONS, "p(a) := q(x) where a = a + x;"),
    ("S103", RELATIONS, "p(a) := q(x) where a = b, b = c, c = a;"),
    ("S103", RELATIONS, "p(a) := q(x) where a = y + 1;"),
    ("S103", RELATIONS, "p(x) := q(x) where unused = y;"),
    ("S103", RELATIONS, "p(x) := q(x) ^ not r(y) where a = y;"),
    ("S103", RELATIONS, "p(a) := q(x) where a = _;"),
    ("S103", RELATIONS, "p(a) where a = b;"),
    (
        "S103",
        RELATIONS,
        f"p(a{DEPTH_MAX}) := q(x) where a0 = x"
        + "".join(f", a{i} = a{i - 1} + 1" for i in range(1, DEPTH_MAX + 1))
        + ";",
    ),
    # S104: one variable in the fact and in a parafact.
    ("S104", EVENTS, "p(x) @max(x) := q(x);"),
    ("S104", EVENTS, "p(y) @max(x) := q(x) where y = x * 2;"),
    ("S104", EVENTS, "p(x) @max(z) := q(x) where z = y, y = x + 1;"),
    ("S104", EVENTS, "p(t) @time(t + 5) := q(x) @time(t);"),
    ("S104", EVENTS, "p(x) @expires(x) := q(x);"),
    # S105: `_` in a head.
    ("S105", RELATIONS, "p(«_) := q(x);"),
    ("S105", RELATIONS, "p(x, x + «_) := q(x);"),
    ("S105", RELATIONS, "p(x) @max(«_) := q(x);"),
    ("S105", RELATIONS, "p(x) @async(«_) := q(x);"),
    ("S105", RELATIONS, "p(«_);"),
    # S106: clock arguments without a value.
    ("S106", EVENTS, "p() := clock(«o, 5) @time(t);"),
    ("S106", EVENTS, "p() := clock(0, «p) @time(t);"),
    ("S106", EVENTS, "p() := clock(0, 2 * «p);"),
    ("S106", EVENTS, "p() := clock(«_, 5);"),
    ("S106", EVENTS, "p() := clock(«t, 5) @time(t);"),
    ("S106", EVENTS, "p() := clock(«o, 5) @time(t) where o = t + 1;"),
    ("S106", EVENTS, "p() := clock(«a, 5) @time(b) ^ clock(b, 5) @time(a);"),
    ("S106", EVENTS, "p(x) := q(x) ^ not clock(0, «p);"),
    # S107: a parafact matched inside the recursion.
    ("S107", EVENTS, "p(x) @time(t + 1) := p(x) @time(t);"),
    ("S107", EVENTS, "p(y) := p(x) @expires(u) ^ e(x, y) if u > 3; p(x) := s(x);"),
    ("S107", EVENTS, "p(y) := p(x) @time(_) ^ e(x, y); p(x) := s(x);"),
    ("S107", RELATIONS, "p(y) := p(x) @provenance(_) ^ e(x, y); p(x) := s(x);"),
    ("S107", RELATIONS, "a(x) := b(x) @count(_); b(x) := a(x) ^ c(x); b(x) := c(x);"),
    # S108: unknown lattices.
    ("S108", EVENTS, "p(x) @«frobnicate(y) := q(x, y);"),
    ("S108", EVENTS, "p(x) := q(x) @«tme(t);"),
    ("S108", EVENTS, "p(x) := q(x) ~«tme;"),
    ("S108", EVENTS, "p(x) ~«provenence := q(x);"),
    ("S108", EVENTS, "p(x) := q(x) ^ not r(x) @«source(_);"),
    # S109: numbers of columns.
    ("S109", RELATIONS, "q(1, 2); p(x) := «q(x);"),
    ("S109", RELATIONS, "p(x) := q(x) ^ «q(x, x);"),
    ("S109", RELATIONS, "p(x) := q(x) ^ not «q(x, x);"),
    ("S109", RELATIONS, "p(x) := q(x); «p(x, x) := q(x);"),
    ("S109", RELATIONS, "p(x) := «clock(0);"),
    ("S109", DESCRIBED, "p(k) := «t(k);"),
    ("S109", DESCRIBED, "«t(k) := s(k);"),
    ("S109", DESCRIBED, "«t(k: x) := s(x);"),
    ("S109", DESCRIBED, "big(k: k, v: v) := t(k, v); «big(k: k) := s(k);"),
    ("S109", EVENTS, "p(x) := q(x) @«time(t, u);"),
    ("S109", EVENTS, "p(x) := q(x) @«extent(lo, hi);"),
    ("S109", EVENTS, "p(x) @«count() := q(x);"),
    # S110: the clock is no predicate to derive.
    ("S110", RELATIONS, "«clock(0, 5);"),
    ("S110", RELATIONS, "«clock(x, y) := q(x, y);"),
    # S111: no time left.
    ("S111", EVENTS, "p(x) ~time := q(x);"),
    ("S111", EVENTS, "p(x) := q(x) ~time ^ r(x) ~time;"),
    ("S111", EVENTS, "p() ~time := clock(0, 5);"),
    ("S111", DESCRIBED, "p(k) := s(k) ^ e(k, _) ~time;"),
    ("S111", EVENTS, "a(x) := q(x); p(x) := a(x) ~time;"),
    # S112: new values in a recursion.
    ("S112", RELATIONS, "n(x) := z(x); n(x + 1) := n(x);"),
    ("S112", RELATIONS, "n(x) := z(x); n(y) := n(x) where y = x + 1;"),
    ("S112", RELATIONS, "n(x) := z(x); n(x + 1) := n(x) if x != 10;"),
    ("S112", RELATIONS, "n(x) := z(x); n(x + 1) := n(x) ^ m(y) if y < 10;"),
    ("S112", RELATIONS, 'w(x) := a(x); w(concat(x, "a")) := w(x);'),
    ("S112", RELATIONS, "n(x) := z(x); n(-x) := n(x);"),
    ("S112", RELATIONS, "n(x) := z(x); m(x + 1) := n(x); n(x) := m(x);"),
    # S113: functions.
    ("S113", RELATIONS, "p(y) := q(x) where y = «sqrt(x);"),
    ("S113", RELATIONS, "p(«count(x)) := q(x);"),
    ("S113", RELATIONS, "p(«abs(x, x)) := q(x);"),
    ("S113", RELATIONS, "p(x) := q(x) if «substring(x, 1) == x;"),
    ("S113", RELATIONS, "p(x) := q(«abs());"),
    ("S113", RELATIONS, "p(x) := q(x) if x > 1 ^ «r(x);"),
    ("S113", RELATIONS, "p(x) @max(«maximum(x)) := q(x);"),
    # S114: stated facts are ground.
    ("S114", EVENTS, "p(«x);"),
    ("S114", EVENTS, "p(1) @time(«t);"),
    ("S114", EVENTS, "p(1, «x + 1);"),
    # S115: aggregates over themselves.
    ("S115", RELATIONS, "p(x) @count(y) := p(y) ^ q(x, y);"),
    ("S115", RELATIONS, "p(x) @average(y) := r(x, y); r(x, 1) ~average := p(x) @average(a);"),
    ("S115", RELATIONS, "p(x) @sum(y) @min(y) := p(y) ^ q(x, y);"),
    # S116: periods.
    ("S116", EVENTS, "p() := clock(0, «0);"),
    ("S116", EVENTS, "p() := clock(0, «-5);"),
    ("S116", EVENTS, "p() := clock(0, «p) where p = 0;"),
    ("S116", EVENTS, "p() := clock(0, «p) where p = -q, q = 5;"),
    # S118: variables under `not`.
    ("S118", RELATIONS, "p(x) := q(x) ^ not r(x, «y);"),
    ("S118", RELATIONS, "p(x) := not q(«x);"),
    ("S118", RELATIONS, "p(x) := q(x) ^ not r(x + «y);"),
    ("S118", RELATIONS, "p(x) := q(x) ^ not r(«y, y);"),
    ("S118", EVENTS, "p(x) := q(x) ^ not r(x) @time(«t);"),
    # S120: types.
    ("S120", RELATIONS, 'p(1); p("one");'),
    ("S120", RELATIONS, "p(true); p(1);"),
    ("S120", DESCRIBED, "p(x) := n(x) ^ s(x);"),
    ("S120", DESCRIBED, "p(x) := t(x, x);"),
    ("S120", DESCRIBED, "p(x + 1) := s(x);"),
    ("S120", DESCRIBED, "p(-x) := s(x);"),
    ("S120", DESCRIBED, "p(x) := n(x) if x;"),
    ("S120", DESCRIBED, "p(x) := n(x) if x + 1;"),
    ("S120", DESCRIBED, 'p(x) := n(x) if x > "a";'),
    ("S120", DESCRIBED, 'p(x) := n(x) if x == "a";'),
    ("S120", DESCRIBED, "p(x) := n(x) if x > 1 && x;"),
    ("S120", DESCRIBED, 'p(x) := n(x) ^ n("a");'),
    ("S120", DESCRIBED, "p(x) := n(x) ^ not s(x);"),
    ("S120", DESCRIBED, "p(lower(x)) := n(x);"),
    ("S120", DESCRIBED, 'p(concat(x, "a")) := n(x);'),
    ("S120", DESCRIBED, "p(length(x)) := n(x);"),
    ("S120", DESCRIBED, "p(round(x)) := s(x);"),
    ("S120", DESCRIBED, "p(float(x)) := b(x);"),
    ("S120", DESCRIBED, 'p(substring(x, "a", 1)) := s(x);'),
    ("S120", DESCRIBED, "p(x) := s(x) if contains(x, 1);"),
    ("S120", DESCRIBED, 'p(least(x, "a")) := n(x);'),
    ("S120", DESCRIBED, 'p(coalesce(x, "a")) := n(x);'),
    ("S120", DESCRIBED, "p() @sum(x) := s(x);"),
    ("S120", DESCRIBED, "p() @average(x) := b(x);"),
    ("S120", DESCRIBED, "p() @max(x) := s(x); q() ~max := p() @max(y) if y > 3;"),
    ("S120", DESCRIBED, "p() @max(x) := s(x); p() @max(x) := n(x);"),
    ("S120", DESCRIBED, 'p() @count(x) := s(x); q() := p() @count("a");'),
    ("S120", DESCRIBED, "p() @set(x) := s(x); q() ~set := p() @set(y) if y > y;"),
    # W8: sets have no order, so there is no least and no greatest.
    ("S120", DESCRIBED, "p() @set(x) := s(x); w(v) ~set := p() @set(v); q(least(v, v)) := w(v);"),
    ("S120", DESCRIBED, "p() @set(x) := s(x); w(v) ~set := p() @set(v); q(greatest(v)) := w(v);"),
    ("S120", DESCRIBED, "p() @set(x) := s(x); w(v) ~set := p() @set(v); q() @max(v) := w(v);"),
    ("S120", DESCRIBED, "p() @set(x) := s(x); w(v) ~set := p() @set(v); q() @earliest(v) := w(v);"),
    (
        "S120",
        DESCRIBED,
        "p() @set(x) := s(x); w(v) ~set := p() @set(v); q() @extent(1, v, v) := w(v);",
    ),
    ("S120", DESCRIBED, "p(k) @time(1.5) := e(k, _);"),
    ("S120", DESCRIBED, 'p(k) @expires("a") := e(k, _);'),
    ("S120", DESCRIBED, "p(t) := e(t, _) @time(t);"),
    ("S120", DESCRIBED, "p(k) := e(k, _) ^ clock(0, 2.5);"),
    ("S120", DESCRIBED, "n(1.5);"),
    ("S120", DESCRIBED, "d(x) := n(x); d(y) := d(x) ^ s(y);"),
    ("S120", DESCRIBED, "a(x) := c(x); c(x) := d(x); d(x) := n(x); a(x) := s(x);"),
    ("S120", DESCRIBED, 'p(x) @next := n(x); p("a");'),
    # S121: columns.
    ("S121", DESCRIBED, "p(x) := t(«key: x);"),
    ("S121", DESCRIBED, "big(k: k, v: v) := t(k, v); p(k) := big(«name: k);"),
    ("S121", DESCRIBED, "p(k) := big(«name: k); big(k: k, v: v) := t(k, v);"),
    ("S121", DESCRIBED, "big(k, v) := t(k, v); p(k) := big(«c2: k);"),
    ("S121", DESCRIBED, "big(k: k, v: v) := t(k, v); big(k: k, «value: v) := t(k, v);"),
    ("S121", DESCRIBED, "p(x) := t(k: x, «k: x);"),
    ("S121", RELATIONS, "p(x) := q(«name: x);"),
    # S122: @next and @async keep the time.
    ("S122", EVENTS, "p(x) @next @«time(t + 1) := q(x) @time(t);"),
    ("S122", EVENTS, "p(x) @«time(3) @async(x) := q(x);"),
    # S123: positional and named arguments.
    ("S123", DESCRIBED, "p(x) := t(x, «v: 3);"),
    ("S123", DESCRIBED, "p(x) := t(k: x, «3);"),
    ("S123", DESCRIBED, "p(a: x, «3) := s(x);"),
    # S124: unknown inputs.
    ("S124", DESCRIBED, "p(x) := «zzz(x);"),
    ("S124", DESCRIBED, "p(x) := s(x) ^ not «absent(x);"),
    ("S124", DESCRIBED, "p(x) := «T(x, _);"),
    # S125: one timeline for a program.
    ("S125", DESCRIBED, "p(k) := e(k, _) ^ other(k);"),
    ("S125", DESCRIBED, "p(k) := e(k, _); q(k) := other(k);"),
    ("S125", DESCRIBED, "p(k) := e(k, _) ^ not other(k);"),
    ("S125", DESCRIBED, "other(k) := e(k, _);"),
    # S128: a rule matches no more atoms than engines nest.
    ("S128", DESCRIBED, f"p(x) := {'s(x) ^ not s(1) ^ ' * 64}«s(x) ^ s(x);"),
]

SHORTEST = "d(x) @min(0) := s(x); "
S117 = [
    "d(y) @min(w - v) := d(x) @min(v) ^ e(x, y, w);",
    "d(y) @min(-v) := d(x) @min(v) ^ e(x, y, w);",
    "d(y) @min(v * w) := d(x) @min(v) ^ e(x, y, w);",
    "d(y) @min(v * -2) := d(x) @min(v) ^ e(x, y, w);",
    "d(y) @min(v / 2) := d(x) @min(v) ^ e(x, y, w);",
    "d(y) @min(abs(v)) := d(x) @min(v) ^ e(x, y, w);",
    "d(y) @min(z) := d(x) @min(v) ^ e(x, y, w) where z = w - v;",
    "d(y) @min(v - u) := d(x) @min(v) ^ d(y) @min(u) ^ e(x, y, w);",
    "d(y) @min(w) := d(x) @min(3) ^ e(x, y, w);",
    "d(y) @min(w) := d(x) @min(w + 1) ^ e(x, y, w);",
    "d(y) @min(v) := d(x) @min(v) ^ d(y) @min(v);",
    "d(y) @min(v) := d(x) @min(v) ^ e(x, y, v);",
    "d(y) @min(v) := d(x) @min(v) ^ e(x, y, v + 1);",
    "d(y) @min(v) := d(x) @min(v) ^ e(x, y, _) ^ not f(v);",
    "d(v) := d(x) @min(v);",
    "d(y) @max(v) := d(x) @min(v) ^ e(x, y, _);",
    "d(y) @set(v) := d(x) @min(v) ^ e(x, y, _);",
    "d(y) @expires(v) := d(x) @min(v) ^ e(x, y, _);",
    "d(y) @min(v) := d(x) @min(v) ^ e(x, y, w) if v > w;",
    "d(y) @min(v) := d(x) @min(v) ^ e(x, y, w) if w < v;",
    "d(y) @min(v) := d(x) @min(v) ^ e(x, y, w) if v == w;",
    "d(y) @min(v) := d(x) @min(v) ^ e(x, y, w) if v != w;",
    "d(y) @min(v) := d(x) @min(v) ^ e(x, y, w) if v < 3 && v > w;",
    "d(y) @min(v) := d(x) @min(v) ^ e(x, y, w) if bad where bad = v > w;",
    "d(y) @min(v) := d(x) @min(v) ^ d(z) @min(u) ^ e(x, y, z) if v <= u;",
    "d(y) @min(v) := d(x) @min(v) ^ g(z) @max(u) ^ e(x, y, z) if v <= u; g(x) @max(0) := d(x);",
    "g(x) := d(x); d(x) @min(v) := g(x) @min(v) if v > 3;",
]
MONOTONE = [
    "d(y) @min(v + w) := d(x) @min(v) ^ e(x, y, w);",
    "d(y) @min(v - w) := d(x) @min(v) ^ e(x, y, w);",
    "d(y) @min(2 * v) := d(x) @min(v) ^ e(x, y, w);",
    "d(y) @min(v * k) := d(x) @min(v) ^ e(x, y, w) where k = 2;",
    "d(y) @min(least(v, w, 10)) := d(x) @min(v) ^ e(x, y, w);",
    "d(y) @min(greatest(v + w, 10)) := d(x) @min(v) ^ e(x, y, w);",
    "d(y) @min(z) := d(x) @min(v) ^ e(x, y, w) where z = v + k, k = w * w;",
    "d(y) @min(v + u) := d(x) @min(v) ^ d(y) @min(u) ^ e(x, y, w);",
    "d(y) @min(w) := d(x) @min(_) ^ e(x, y, w);",
    "d(y) @min(w) := d(x) ^ e(x, y, w);",
    "d(y) := d(x) ^ e(x, y, w);",
    "d(y) @min(v) := d(x) @min(v) ^ e(x, y, w) if v <= w;",
    "d(y) @min(v) := d(x) @min(v) ^ e(x, y, w) if w >= v + 1;",
    "d(y) @min(v) := d(x) @min(v) ^ e(x, y, w) if v < 3 && v <= w || w > 2;",
    "d(y) @min(v) := d(x) @min(v) ^ e(x, y, w) if fine where fine = v <= w;",
    "h(y) @min(v) := d(x) @min(v) ^ e(x, y, v) if v > 3;",
    "h(v) @count(x) := d(x) @min(v);",
    "h(y) := d(y) @min(3);",
    "d(y) @next := d(x) @min(v) ^ e(x, y, v) if v > 3;",
]
OTHER_LATTICES = [
    ("max", "v >= w", True),
    ("max", "w < v", True),
    ("max", "v <= w", False),
    ("max", "v == w", False),
    ("set", "contains(v, w)", True),
    ("set", "contains(v, 3) && length(v) >= 2", True),
    ("set", "2 < length(v)", True),
    ("set", "length(v) < 2", False),
    ("set", "2 > length(v)", False),
    ("set", "length(v) == 2", False),
    ("set", "v == v", False),
    ("set", "contains(v, length(v))", False),
]

ACCEPTED = [
    (RELATIONS, "p(x, y) := q(x) where y = x + 1;"),
    (RELATIONS, "p(x) @async(n) := q(x, n);"),
    (RELATIONS, "p(x) @async(x) := q(x);"),
    (RELATIONS, "p(x) := q(x, x + 1);"),
    (RELATIONS, "p(x) := q(x) ^ r(x + 1);"),
    (RELATIONS, "p(x) := q(x) where x = 3;"),
    (RELATIONS, "p(a) where a = 3;"),
    (RELATIONS, "p(a) := q(x) where a = b, b = x;"),
    (RELATIONS, "p(y) @max(x) := q(x, y);"),
    (RELATIONS, "p(3) @max(x) @min(x) := q(x);"),
    (EVENTS, "p(x) @time(t + 1) @expires(t + 5) := q(x) @time(t);"),
    (EVENTS, "p(x) @sum(y) @sum(z) := q(x, y, z);"),
    (RELATIONS, "p(x) := q(x) ^ not r(x, _) @count(_);"),
    (RELATIONS, "p() := not q(_);"),
    (EVENTS, "p(t) := q(_) @time(t) ^ not r(t) @time(t);"),
    (EVENTS, "p(x) := q(x) ^ every(p) ^ clock(0, p) @time(t);"),
    (EVENTS, "p(x) := q(x) @time(o) ^ clock(o, p) where p = x * 2;"),
    (EVENTS, "p(a) := q(a) ^ clock(a, 5) @time(b) ^ clock(b, 7);"),
    (EVENTS, "p() := clock(offset: 0, period: 5);"),
    (EVENTS, "p() := clock(0, 5) ^ not clock(0, 10);"),
    (EVENTS, "p(x) := r(x); p(x) := p(x) ^ s(x); q(x) @time(t + 1) := p(x) @time(t);"),
    (EVENTS, "d(y) @time(t) := d(x) ^ e(x, y) @time(t); d(x) := s(x);"),
    (EVENTS, "d(y) @expires(t + 5) := d(x) ^ e(x, y) @time(t); d(x) := s(x);"),
    (EVENTS, "p(x) := p(x) ^ q(x) @expires(u) if u > 3; p(x) := q(x);"),
    (EVENTS, "p(x) ~time @time(t) := q(x) @time(t);"),
    (EVENTS, "p(x) := q(x) ~time ^ r(x);"),
    (RELATIONS, "p(x) ~time := q(x);"),
    (DESCRIBED, "p(k) := e(k, _) ~time ^ s(k) ^ clock(0, 5);"),
    (RELATIONS, "n(x) := z(x); n(x + 1) := n(x) if x < 10;"),
    (RELATIONS, "n(x) := z(x); n(y) := n(x) if y <= 10 where y = x + 1;"),
    (RELATIONS, "n(x) := z(x); n(y) := n(x) if small where y = x + 1, small = y <= 10;"),
    (RELATIONS, "n(x) := z(x); n(x + y) := n(x) ^ m(y) if y == 1;"),
    (RELATIONS, "n(x) := z(x); n(y + 1) := n(x) ^ m(y);"),
    (RELATIONS, "n(x) := z(x); n(x + 1) @next := n(x);"),
    (RELATIONS, "n(x) := z(x); m(x + 1) := n(x);"),
    (RELATIONS, "n(x) := z(x); n(2 + 3) := n(x);"),
    (RELATIONS, "p(x) @next := p(x) ^ not del(x);"),
    (RELATIONS, "a(x) := b(x) ^ not c(x); c(x) @next := a(x);"),
    (RELATIONS, "a(x) @async(x) := b(x) ^ not a(x);"),
    (RELATIONS, "p(x) @count(y) @next := p(y) ^ q(x, y);"),
    (RELATIONS, 'a(x) @provenance("k") := a(y) ^ b(x, y);'),
    (RELATIONS, "p(x) @min(y) := p(y) ^ q(x, y);"),
    (EVENTS, "p(x) @next @expires(t + 3) := q(x) @time(t);"),
    (RELATIONS, "p(1); p(2.5); p(null); q(x) := p(x) if x > 1.5;"),
    (RELATIONS, 'p("a"); p(null);'),
    (DESCRIBED, "p(x) := n(x) ^ f(x) if x == 2.5;"),
    (DESCRIBED, "p(x) := n(x) if x == null || is_null(x);"),
    (DESCRIBED, "p(x) := b(x) if x ^ x == true ^ x || false;"),
    (DESCRIBED, "p(concat(x, text(y))) := s(x) ^ n(y) if int(x) > y ^ float(x) > 2.5;"),
    (DESCRIBED, "p(coalesce(x, 1.5), least(x, 2.5)) := n(x);"),
    (DESCRIBED, 'p() @set(x) := s(x); q() ~set := p() @set(y) if length(y) > 2 ^ contains(y, "a");'),
    (DESCRIBED, "p() @average(x) := n(x); q(y) ~average := p() @average(y);"),
    (DESCRIBED, "f(1);"),
    (DESCRIBED, "p(x) := t(v: x); q(k) := t(k: k, v: _);"),
    (DESCRIBED, "big(k: k, v: v) := t(k, v); big(a, b) := t(a, b); p(v) := big(v: v);"),
    (DESCRIBED, "p(k) := big(c1: k); big(k, v) := t(k, v);"),
    (DESCRIBED, "p(k) := s(k); q(k) := t(k, _);"),
    (DESCRIBED, "p(k) := other(k) ^ clock(0, 5);"),
]  # fmt: skip


def mistakes(text: str, catalog: InputSchemas) -> tuple[Diagnostic, ...]:
    try:
        check(parse(text), catalog)
    except ProgramErrors as refused:
        return refused.diagnostics
    return ()


@pytest.mark.parametrize(
    ("code", "catalog", "marked"), REFUSED, ids=[f"{code} {text[:45]}" for code, _, text in REFUSED]
)
def test_a_mistake_has_its_code_and_its_place(
    code: str, catalog: InputSchemas, marked: str
) -> None:
    before, mark, after = marked.partition("«")
    found = mistakes(before + after, catalog)
    assert found, "accepted"
    assert found[0].code == code, found[0].render(before + after)
    if mark:
        assert found[0].column == len(before) + 1, found[0].render(before + after)
    assert found[0].hint


@pytest.mark.parametrize(("catalog", "text"), ACCEPTED, ids=[text[:50] for _, text in ACCEPTED])
def test_a_near_miss_is_accepted(catalog: InputSchemas, text: str) -> None:
    assert [each.render(text) for each in mistakes(text, catalog)] == []


@pytest.mark.parametrize("rule", S117)
def test_an_unfinished_minimum_is_used_monotonely_only(rule: str) -> None:
    assert [each.code for each in mistakes(SHORTEST + rule, RELATIONS)][:1] == ["S117"]


@pytest.mark.parametrize("rule", MONOTONE)
def test_monotone_uses_of_a_minimum_are_accepted(rule: str) -> None:
    assert [each.render(rule) for each in mistakes(SHORTEST + rule, RELATIONS)] == []


@pytest.mark.parametrize(("lattice", "guard", "monotone"), OTHER_LATTICES)
def test_guards_over_unfinished_values_stay_true(lattice: str, guard: str, monotone: bool) -> None:
    text = f"d(x) @{lattice}(0) := s(x); d(y) @{lattice}(w) := d(x) @{lattice}(v) ^ e(x, y, w) if {guard};"
    assert [each.code for each in mistakes(text, RELATIONS)][:1] == ([] if monotone else ["S117"])


@pytest.mark.parametrize(
    "text",
    [
        "d(x) @min(0) := s(x); d(y) @min(v + w) := d(x) @min(v) ^ e(x, y, w);",
        "d(x, y) @min(w) := e(x, y, w); d(x, z) := d(x, y) ^ e(y, z, _);",
        "d(x) := s(x); d(y) := d(x) ^ e(x, y); d(x) @set(w) := q(x, w);",
    ],
)
def test_semilattices_are_not_recursive_over_events(text: str) -> None:
    assert [each.code for each in mistakes(text, EVENTS)][:1] == ["S117"]


@pytest.mark.parametrize(
    ("text", "code", "cycle"),
    [
        ("a(x) := b(x) ^ not a(x);", "S119", ["a"]),
        ("a(x) := e(x) ^ not b(x); b(x) := e(x) ^ not a(x);", "S119", ["a", "b"]),
        ("p(x) := q(x); q(x) := r(x); r(x) := e(x) ^ not p(x);", "S119", ["p", "q", "r"]),
        ("a(x) @count(y) := e(x, y) ^ not c(x); c(x) := a(x);", "S119", ["a", "c"]),
        ("a(x) @min(y) := e(x, y) ^ not a(x);", "S119", ["a"]),
        ("a(x) := e(x) ^ not d(x); d(x) := c(x); c(x) := b(x); b(x) := a(x); d(x) := b(x);",
         "S119", ["a", "b", "d"]),
        ("t(x) @sum(n) := v(x, n); v(x, n) := c(x) ^ e(x, n); c(x) ~sum := t(x) @sum(s) if s > 5;",
         "S115", ["c", "t", "v"]),
    ],
)  # fmt: skip
def test_the_shortest_cycle_through_the_refused_edge_is_printed(
    text: str, code: str, cycle: list[str]
) -> None:
    first = mistakes(text, RELATIONS)[0]
    assert (first.code, sorted(first.cycle)) == (code, cycle)
    assert len(first.edges) == len(cycle)
    assert all(f"{name} → " in "\n".join(first.edges) for name in cycle)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("p(y) := zzz(x) if y > 1 where z = y;", "S124"),  # names before definitions
        ("p(z) := s(x) if y > 1 where z = y;", "S103"),  # definitions before guards
        ("p(y) := s(x) ^ not t(x, y) if y > 1;", "S118"),  # the body before the guard
        ("p(y) := s(x) if y > 1;", "S102"),  # the guard before the head
        ("p(q) := e(x, _) ^ clock(0, q) if q > 1;", "S106"),  # clocks before guards
        ("p(x) := s(x) ^ not p(y);", "S118"),  # variables before cycles
        ("p(x + 1) := s(x) ^ not p(x);", "S119"),  # cycles before types
        ("p(x) ~time := e(x, _) if x > 1;", "S111"),  # times before types
        ("p(x) @zzz(y) := s(x);", "S108"),  # lattices before the head
        ("p(sqrt(y)) := s(x);", "S113"),  # functions before the head
    ],
)
def test_a_mistake_that_shows_in_several_places_is_reported_in_order(text: str, code: str) -> None:
    assert mistakes(text, DESCRIBED)[0].code == code


def test_all_mistakes_of_one_kind_are_reported_in_the_order_of_the_text() -> None:
    found = mistakes("p(x) := q(x) if y > 1;\nr(x) := q(x) if x > 1 ^ z < 3;", RELATIONS)
    assert [(each.code, each.line, each.column) for each in found] == [
        ("S102", 1, 17), ("S102", 2, 25),
    ]  # fmt: skip


def warnings(text: str, catalog: InputSchemas) -> list[str]:
    return [each.code for each in check(parse(text), catalog).warnings]


def test_what_runs_but_is_likely_not_meant_is_warned_about() -> None:
    endless = InputSchemas({"a": InputSchema("a", "events", (("x", "int"),), rows_expire=False),
                       "b": InputSchema("b", "events", (("x", "int"),))})  # fmt: skip
    assert warnings("p(x) := a(x) ^ b(x);", endless) == ["W202"]
    assert warnings("p(x) := a(x) @time(t) ^ b(x) @time(u) if t > u - 10;", endless) == []
    assert warnings("p(x) := a(x);", endless) == []
    assert warnings("b(1);", endless) == ["W203"]
    assert warnings("p(x) := a(x) if false;", endless) == ["W204"]
    assert warnings("p(x) := n(x) @time(t);", DESCRIBED) == ["W204"]


def codes_of(text: str) -> list[str]:
    """The codes of a program that is refused; none of one that is not."""
    try:
        check(parse(text), InputSchemas({}))
    except ProgramErrors as error:
        return [each.code for each in error.diagnostics]
    return []


def test_a3_a_long_chain_of_definitions_is_looked_through_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A3: each walked all behind it again, and a program of 55 kB took fifteen seconds."""
    walked = 0

    def counted(expression: Expression) -> Iterator[Expression]:
        nonlocal walked
        walked += 1
        return walk(expression)

    monkeypatch.setattr(check_definitions, "walk", counted)
    steps = ", ".join(f"v{n + 1} = v{n} + 1" for n in range(500))
    assert set(codes_of(f"t(1); p(v500) := t(v0) where {steps};")) == {"S103"}
    assert walked < 10_000


def test_s7_definitions_that_double_are_refused_before_anybody_puts_them_together() -> None:
    def doubling(steps: int) -> str:
        defined = [f"v{step} = v{step + 1} + v{step + 1}" for step in range(steps)]
        return f"t(1); p(v0) := t(x) where {', '.join(defined)}, v{steps} = x;"

    begun = time.process_time()
    assert set(codes_of(doubling(26))) == {"S103"}
    assert set(codes_of(doubling(150))) == {"S103"}
    assert time.process_time() - begun < 2
    assert codes_of(doubling(8)) == []


@pytest.mark.parametrize(
    ("guard", "codes"),
    [
        ('x < "zzz"', ["S112"]),
        ("length(x) >= 0", ["S112"]),
        ("length(x) > 3", ["S112"]),
        ("20 < length(x)", ["S112"]),
        ("length(x) < 20", []),
        ("20 >= length(x)", []),
        ("length(x) + 1 <= 20", []),
    ],
)
def test_s7_texts_that_grow_are_bounded_by_their_length_alone(guard: str, codes: list[str]) -> None:
    assert codes_of(f't("a"); n(x) := t(x); n(concat(x, x)) := n(x) if {guard};') == codes
    defined = f'n(y) := n(x) if {guard} where y = concat(x, "b")'
    assert codes_of(f't("a"); n(x) := t(x); {defined};') == codes


@pytest.mark.parametrize(
    ("head", "guard", "codes"),
    [
        ("x + 1", "x > 0", ["S112"]),
        ("x + 1", "0 <= x", ["S112"]),
        ("x + 1", "-x < 0", ["S112"]),
        ("x + 1", "x > 0 && x != 7", ["S112"]),
        ("x + 1", "x < 10 || x > 5", ["S112"]),
        ("x + y", "x > 0", ["S112"]),
        ("x - 1", "x < 10", ["S112"]),
        ("x - y", "x <= 10", ["S112"]),
        ("-1 + x", "x < 10", ["S112"]),
        ("x + 1", "x < 10", []),
        ("x + 1", "10 > x + 1 && x > 0", []),
        ("x + 1", "x < 10 || x < 20", []),
        ("x + 1", "abs(x) < 10", []),
        ("x + y", "x + y <= 100", []),
        ("x - 1", "x > 0", []),
        ("x - y", "x > y", []),
        ("x * 2", "x < 100", []),
        ("-x", "x > 0", []),
    ],
)
def test_s7_a_guard_bounds_values_where_they_go(head: str, guard: str, codes: list[str]) -> None:
    """`x + 1` with `x > 0` counts for ever: growing values need a bound above, others below."""
    stated = "t(1); s(2); n(x) := t(x); "
    assert codes_of(f"{stated}n({head}) := n(x) ^ s(y) if {guard};") == codes
    defined = f"n(z) := n(x) ^ s(y) if g where z = {head}, g = {guard};"
    assert codes_of(stated + defined) == codes


def test_s7_parentheses_by_the_hundreds_are_no_recursion_of_ours() -> None:
    assert codes_of("p(" + "(" * 5_000 + "1" + ")" * 5_000 + ");") == []
    assert codes_of("t(1); p(x) := t(x) if " + "-(" * 400 + "x" + ")" * 400 + " > 2;") == ["E009"]
    assert codes_of("t(1); p(x) := t(x) if " + "x + " * 400 + "1 > 2;") == ["E009"]


@pytest.mark.parametrize(("column", "cut"), [(1, " …"), (5_000, "……"), (10_000, "… ")])
def test_a3_of_a_long_line_what_is_around_the_mistake_is_shown(column: int, cut: str) -> None:
    """A3: the width of a line of 16 kB took the event loop a tenth of a second."""
    line = "".join(chr(ord("a") + n % 26) for n in range(10_000))
    span = Span(2, column, 2, column + 1)
    says = Diagnostic("S100", "wrong", span, "f").render(f"short\n{line}\nshort")
    _, shown, under = says.split("\n")
    assert len(shown) < SHOWN_MAX + 10
    assert shown[under.index("^")] == line[column - 1]
    assert ("…" if shown[5] == "…" else " ") + ("…" if shown[-1] == "…" else " ") == cut
