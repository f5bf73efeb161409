"""Text forms of types: what reads, what does not, and that a form read is a form written."""

from __future__ import annotations

import json
from datetime import UTC, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.time.typed import (
    READ,
    SPAN_MAX,
    Json,
    fitting,
    json_of,
    json_of_tree,
    json_tree,
    json_value,
    plain,
    read_decimal,
    read_instant,
    read_json,
    read_json_slowly,
    write_typed,
)

VALUES = st.one_of(
    st.datetimes(timezones=st.just(UTC)),
    st.dates(),
    st.timedeltas(timedelta(microseconds=-SPAN_MAX), timedelta(microseconds=SPAN_MAX)),
    st.decimals(-(10**18), 10**18, allow_nan=False, places=6).map(fitting),
    st.uuids(),
    st.binary(max_size=8),
)


@given(VALUES)
def test_a_value_that_is_written_reads_as_itself(value: Any) -> None:
    text = write_typed(value)
    kinds = [kind for kind, read in READ.items() if kind != "json" and read(text) == value]
    assert kinds
    assert write_typed(READ[kinds[0]](text)) == text  # type: ignore[arg-type]  # it has read


@pytest.mark.parametrize(
    ("kind", "text", "canonical"),
    [
        ("timestamp", "2026-03-01 12:00", "2026-03-01T12:00:00Z"),
        ("timestamp", "2026-03-01T12:00:00.1234567+02:00", "2026-03-01T10:00:00.123456Z"),
        ("timestamp", "2026-03-01T12:00:00.5-0030", "2026-03-01T12:30:00.500Z"),
        ("duration", "90m", "1h30m"),
        ("duration", "PT1.5S", "1s500ms"),
        ("duration", "-P1DT2H", "-1d2h"),
        ("decimal", "-0.00", "0"),
        ("decimal", "1.50e3", "1500"),
        ("decimal", "99999999999999999999.999999999999999999", "99999999999999999999.999999999999999999"),
        ("uuid", "6F9619FF8B86D011B42D00C04FC964FF", "6f9619ff-8b86-d011-b42d-00c04fc964ff"),
        ("bytes", "00FF", "00ff"),
        ("json", '{"b": [1.0, 1e2, -0.0], "a": null}', '{"a":null,"b":[1,100,0]}'),
        ("json", "1e400", "1e400"),
        ("json", '"e\u0301"', '"\u00e9"'),
    ],
)  # fmt: skip
def test_a_form_has_one_canonical_text(kind: str, text: str, canonical: str) -> None:
    found = READ[kind](text)
    assert found is not None
    assert write_typed(found) == canonical


@pytest.mark.parametrize("zero", ["0", "-0", "0E-18", "0.000"])
def test_a_zero_has_one_text_whatever_its_digits(zero: str) -> None:
    assert write_typed(Decimal(zero)) == "0"


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("timestamp", "2026-02-30T00:00:00Z"), ("timestamp", "2026-03-01"), ("timestamp", "now"),
        ("timestamp", "0001-01-01T00:00:00+01:00"), ("timestamp", "2026-03-01T00:00:00+24:00"),
        ("date", "2026-3-1"), ("date", "20260301"), ("duration", "5"), ("duration", "1m1h"),
        ("duration", "P"), ("duration", "9999999999999d"), ("decimal", "1e"), ("decimal", "nan"),
        ("decimal", "1" * 21), ("decimal", "0." + "0" * 18 + "1"), ("uuid", "6f96"),
        ("bytes", "0"), ("bytes", "0 0"), ("json", "{"), ("json", "NaN"), ("json", '"\\ud800"'),
        ("json", "[" * 102 + "]" * 102),
    ],
)  # fmt: skip
def test_a_text_that_is_no_form_reads_as_nothing(kind: str, text: str) -> None:
    assert READ[kind](text) is None


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=8,
))  # fmt: skip
def test_equal_json_has_one_text(value: Any) -> None:
    found = json_of(value)
    if found is not None:
        assert json_of(json_value(found)) == found


_MARKED = st.text(alphabet='aé"\\/\n\t\x7fe\u0301ü~\u0000\ud800', max_size=3)
_WRITTEN_NUMBER = st.sampled_from([
    "0", "-0", "-0.0", "5.0", "12.50", "-0.5", "1e5", "1E400", "15e-1", "0.00000001", "0.0000001", "1e20", "1e21", "1.25e21",
    "100.5", "123456789012345678901234567890", "0.1000000000000000055511151231257827", "1e99999999999999999999", "01", "1.",
])  # fmt: skip
_WRITTEN = st.recursive(
    _WRITTEN_NUMBER | st.builds(json.dumps, _MARKED, ensure_ascii=st.booleans())
    | st.sampled_from(["true", "false", "null", "NaN", '"\\ud800"', '"a\tb"', '"\\x"', "[]", "{}"]),
    lambda inner: st.lists(inner, max_size=3).map(lambda held: f"[ {','.join(held)}]")
    | st.lists(st.tuples(_MARKED.map(json.dumps), inner), max_size=3).map(
        lambda held: "{" + ",\n".join(f"{name} :{each}" for name, each in held) + "}"
    ),
    max_leaves=8,
)  # fmt: skip


@given(_WRITTEN)
def test_json_is_read_fast_as_it_is_read_slowly(text: str) -> None:
    found = read_json(text)
    assert found == read_json_slowly(text)
    if found is not None:
        assert json_of_tree(json_tree(found)) == found
        assert repr(json_value(found)) == repr(json.loads(found.text, parse_float=Decimal))


@pytest.mark.parametrize("inner", ["", "1", "{}"])
@pytest.mark.parametrize("levels", [99, 100, 101, 102])
def test_levels_of_json_are_counted_alike(levels: int, inner: str) -> None:
    text = "[[],[]," + "[" * (levels - 1) + inner + "]" * levels
    assert read_json(text) == read_json_slowly(text)


def test_instants_are_of_one_zone() -> None:
    assert read_instant("2026-03-01T12:00:00+02:00") == read_instant("2026-03-01T10:00Z")
    assert read_decimal("12.50") == Decimal("12.5")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"a":[1.5,2,null]}', {"a": [1.5, 2, None]}),
        ("[1e-9,1e300]", [1e-9, 1e300]),
        ("1e400", "1e400"),
        ("1.0000000000000000001", "1.0000000000000000001"),
        ("123456789012345678901234567890", 123456789012345678901234567890),
    ],
)
def test_json_is_told_with_all_digits_and_never_as_what_json_lacks(text: str, told: Any) -> None:
    found = plain(Json(text))
    assert found == told
    json.dumps(found, allow_nan=False)
