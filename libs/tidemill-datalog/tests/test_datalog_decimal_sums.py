"""Sums of decimal numbers in a compiled loop are those of fractions, rounded once for a mean."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from random import Random
from typing import Any

import numpy as np
import pytest

from tidemill.arrangement.interval_updates import (
    END_WORD,
    SUM,
    SUM_WORDS,
    Change,
    merged_stretches,
)
from tidemill.arrangement.looks import LOOK
from tidemill.datalog.check import check
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.columns.spelling import spelled
from tidemill.datalog.columns.texts import Texts
from tidemill.datalog.dataflow.operators import reducing
from tidemill.datalog.dataflow.operators.decimal_sums import in_two_words, sums_of
from tidemill.datalog.inputs import InputSchema, InputSchemas
from tidemill.datalog.logical.forms import Type
from tidemill.datalog.parser import parse
from tidemill.datalog.presence import Presence
from tidemill.datalog.records import Record
from tidemill.testkit.held import Held
from tidemill.testkit.twins.pointwise import answers
from tidemill.time.typed import EXACT

VALUE, NULLS, PLACE = 3, 4, 4
"""Columns of a value and of the nulls of rows with one group, and of a stretch's first value."""
LAST = 12
GREATEST = Decimal("99999999999999999999.999999999999999999")


def some_decimal(rng: Random) -> Decimal:
    digits = rng.choice((1, 4, 19, 38))
    whole = rng.randrange(-(10**digits) + 1, 10**digits)
    scale = rng.randint(max(0, digits - 20), 18)
    return rng.choice(
        (EXACT.scaleb(Decimal(whole), -scale), GREATEST, GREATEST.copy_negate(), Decimal(0))
    )


@pytest.mark.parametrize("seed", range(40))
def test_sums_of_decimals_are_those_of_fractions(seed: int) -> None:
    rng, texts, given = Random(seed), Texts(), []
    texts.number("no number")  # which a null has
    for _ in range(rng.randint(1, 30)):
        value = rng.choice((None, some_decimal(rng)))
        start = rng.randrange(LAST)
        given.append((value, start, rng.randint(start + 1, LAST)))
    rows = np.zeros((len(given), NULLS + 4), np.int64)
    for row, (value, start, end) in zip(rows, given, strict=True):
        row[VALUE - 1], row[-3:] = END_WORD, (start, end, 1)
        none = value is None
        row[VALUE] = 0 if none else texts.number(spelled(value, Type.DECIMAL))
        row[NULLS] = none << VALUE
    firsts, kinds = np.array([0, len(rows)]), np.array([SUM, SUM])
    two = in_two_words(rows, [VALUE], texts)
    stretches = merged_stretches(two, firsts, 1, kinds, np.zeros(2, np.int64))
    means = sums_of(stretches, PLACE, PLACE + SUM_WORDS, True, texts)
    assert means is not None
    for at, stretch in enumerate(stretches.tolist()):
        here = [v for v, a, b in given if v is not None and a <= stretch[-2] < b]
        total = sum(map(Fraction, here), Fraction(0))
        assert stretch[PLACE] == stretch[PLACE + SUM_WORDS] == len(here)
        assert means.view(np.float64)[at] == (float(total / len(here)) if here else 0)
        sums = sums_of(stretches[at : at + 1], PLACE, PLACE + SUM_WORDS, False, texts)
        if abs(total) < 10**20:
            assert sums is not None
            assert not here or Fraction(texts.texts(sums)[0]) == total
        else:
            assert sums is None


def checked(text: str) -> CheckedProgram:
    columns = (("k", "int"), ("d", "decimal(38,18)"), ("i", "int"), ("x", "float"))
    return check(parse(text), InputSchemas({"cost": InputSchema("cost", "relation", columns)}))


PROGRAM = checked(
    "paid(k) @sum(d) @count(d) @max(i) @min(x) := cost(k, d, i, x);"
    "mean(k) @average(d) @sum(x) := cost(k, d, i, x);"
)


@pytest.mark.parametrize("piece", [1, 5, 1 << 15])
def test_groups_are_read_in_pieces_with_a_look_before_each(
    piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside numbers that a loop adds up stand a sum with too many digits, and floats too far."""
    rng, looks = Random(3), list[int]()
    monkeypatch.setattr(reducing, "PIECE_ROWS", piece)
    rows = [(k, some_decimal(rng), i, rng.choice((1.5, -2.0))) for i in range(60) for k in [i % 9]]
    rows += [(20, GREATEST, 1, 0.5), (20, GREATEST, 2, 0.5), (21, Decimal(1), 3, 1e300)]
    rows += [(21, Decimal(2), 4, 1e-300), (22, None, 5, 1.0)]
    given = {"cost": [Presence(Record("cost", row)) for row in rows]}
    held = Held(PROGRAM)
    held.feed(given)
    token = LOOK.set(lambda: looks.append(1))
    try:
        held.step(1)
    finally:
        LOOK.reset(token)
    twin = answers(PROGRAM, given, 0, 1)[-1]
    for name in ("paid", "mean"):
        assert set(held.texts(name)) == set(twin.records[name])
    assert held.errors() == set(twin.errors) != set()
    groups = len({row[0] for row in rows})
    assert len(looks) >= 2 * (groups if piece == 1 else 1)


def test_rows_without_decimals_are_merged_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside them floats below zero, whose words are turned in place."""
    copied = list[bool]()

    def merged(rows: Change, *given: Any) -> Change:  # Any: the arguments of a compiled loop
        copied.append(bool(rows.flags.owndata))
        return merged_stretches(rows, *given)

    monkeypatch.setattr(reducing, "merged_stretches", merged)
    rows = [(i % 5, Decimal(i), i, x) for i, x in enumerate((1.5, -2.0, -0.5, 0.0) * 5)]
    given = {"cost": [Presence(Record("cost", row)) for row in rows]}
    for text, has_decimals in (
        ("most(k) @max(i) @min(x) @sum(x) := cost(k, _, i, x);", False),
        ("most(k) @max(i) @min(x) @sum(d) := cost(k, d, i, x);", True),
    ):
        copied.clear()
        program = checked(text)
        held = Held(program)
        held.feed(given)
        held.step(1)
        assert set(held.texts("most")) == set(answers(program, given, 0, 1)[-1].records["most"])
        assert set(copied) == {has_decimals}
