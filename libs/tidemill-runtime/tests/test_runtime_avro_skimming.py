"""Avro values that are none: letters, and never a wrong answer."""

from __future__ import annotations

import io
import json
import tracemalloc
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.runtime.formats import AvroFormat, BadRow, Column, RowDecoder
from tidemill.runtime.formats.avro import (
    HEADER_BYTES,
    AvroReader,
    kept_of,
    parse_schema,
    read_value,
)
from tidemill.runtime.formats.avro_skimming import ITEMS_MAX
from tidemill.runtime.formats.columns import NESTING_MAX
from tidemill.testkit.twins.avro_pass import AvroPass, NoValue

HEAD = b"\0\0\0\0\x01"
ENUM = {"type": "enum", "name": "E", "symbols": ["NEW", "PAID"]}
LONGS = {"type": "array", "items": "long"}
COUNTS = {"type": "map", "values": "long"}
LEAST = b"\xff" * 9 + b"\x01"
"""The number −2⁶³."""


def record(*fields: object, name: str = "R") -> dict[str, Any]:
    named = [{"name": f"f{at}", "type": field} for at, field in enumerate(fields)]
    return {"type": "record", "name": name, "fields": named}


def decoded(schema: object, body: bytes, column: Column) -> tuple[list[object], list[str]]:
    """Cells and letters of one record."""
    reader = AvroReader([column])
    reader.know(1, json.dumps(schema))
    rows, letters = RowDecoder([column], AvroFormat(), reader).decode([0], [0], [HEAD + body])
    return rows[column.name].to_pylist(), letters["reason"].to_pylist()


@pytest.mark.parametrize(
    ("kind", "body", "says"),
    [
        (["null", "string", "long"], b"\x01\x02", "a union has no branch -1"),
        (["null", "string"], b"\x01\x02a", "a union has no branch -1"),
        (["null", "string"], b"\x04", "a union has no branch 2"),
        (ENUM, b"\x01", "an enum has no symbol -1"),
        (ENUM, b"\x04", "an enum has no symbol 2"),
        ("boolean", b"\x02", "2 is no boolean"),
        (["null", "boolean"], b"\x02\xff", "255 is no boolean"),
        ("int", b"\x80\x80\x80\x80\x10", "2147483648 is no int of 32 bits"),
        ("int", b"\x81\x80\x80\x80\x10", "-2147483649 is no int of 32 bits"),
        ("long", b"\xff" * 9 + b"\x02", "a length or number in it is none"),
        ("long", b"\x80" * 11 + b"\x02", "a length or number in it is none"),
        ("string", b"\x01abc", "a length or number in it is none"),
        ("string", LEAST, "a length or number in it is none"),
        (record(LONGS), LEAST + b"\x06\x00", "a length or number in it is none"),
        (record(COUNTS), LEAST + b"\x06\x00", "a length or number in it is none"),
        (record(COUNTS), b"\x02\x01a\x02\x00", "a length or number in it is none"),
        ({"type": "fixed", "name": "F", "size": 5}, b"abc", "it ends too early"),
    ],
)  # fmt: skip
def test_a_value_that_avro_does_not_have_is_a_letter(kind: Any, body: bytes, says: str) -> None:
    """The reader of Avro took the branch and the symbol of −1 for the last ones."""
    within = isinstance(kind, dict) and kind["type"] == "record"
    schema = record({**kind, "name": "Inner"} if within else kind, "string")
    for column in (Column("f1", "text"), Column("f0", "text", True)):
        _, (reason,) = decoded(schema, body + b"\x02z", column)
        assert says in reason


def test_a_map_with_a_block_of_a_stated_size_is_read() -> None:
    schema = record(record(COUNTS, name="Inner"), "string")
    body = b"\x01\x06\x02a\x02\x00" + b"\x02z"
    assert decoded(schema, body, Column("f1", "text")) == (["z"], [])


@pytest.mark.parametrize(
    "kind",
    [
        {"type": "fixed", "name": "F", "size": -1},
        {"type": "fixed", "name": "F", "size": "3"},
        {"type": "fixed", "name": "F", "size": 2.5},
        {"type": "fixed", "name": "F", "size": True},
        {"type": "fixed", "name": "int", "size": 1},
        {"type": "enum", "name": "E", "symbols": "AB"},
        {"type": "enum", "name": "string", "symbols": ["A"]},
        {"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 3},
        {"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": -1},
    ],
    ids=str,
)
def test_a_schema_that_avro_does_not_have_makes_letters(kind: object) -> None:
    assert "its schema cannot be read" in decoded(record(kind), b"\0", Column("f0", "text"))[1][0]


def test_a_record_with_two_fields_of_one_name_makes_letters() -> None:
    schema = record("string", "string")
    schema["fields"][1]["name"] = "f0"
    assert "two fields of R have one name" in decoded(schema, b"\0\0", Column("f0", "text"))[1][0]


PRIMITIVE = st.sampled_from(
    ["null", "boolean", "int", "long", "float", "double", "bytes", "string"]
)


@st.composite
def schemas(draw: st.DrawFn) -> Any:
    """Records of any types, also of themselves."""
    names = iter(f"N{at}" for at in range(1_000))

    def named(kind: str, **rest: Any) -> dict[str, Any]:
        return {"type": kind, "name": next(names), **rest}

    def one(depth: int) -> Any:
        pick = draw(st.integers(0, 5 if depth < 3 else 1))
        if pick == 0:
            return draw(PRIMITIVE)
        if pick == 1:
            if draw(st.booleans()):
                return named("fixed", size=draw(st.integers(0, 3)))
            return named("enum", symbols=["A", "B", "C"][: draw(st.integers(1, 3))])
        if pick == 2:
            return {"type": "array", "items": one(depth + 1)}
        if pick == 3:
            return {"type": "map", "values": one(depth + 1)}
        if pick == 4:
            return ["null", draw(st.sampled_from(["Top", one(depth + 1)]))]
        return made(depth + 1)

    def made(depth: int, name: str = "") -> Any:
        fields = [{"name": f"f{at}", "type": one(depth)} for at in range(draw(st.integers(1, 3)))]
        return {"type": "record", "name": name or next(names), "fields": fields}

    return made(0, "Top")


SHORT_BYTES = st.lists(st.sampled_from([0, 0, 0, 1, 2, 2, 2, 3, 4, 0x80, 0xFF, 65]), max_size=40)


@given(schemas(), SHORT_BYTES | st.lists(st.integers(0, 255), max_size=60))
def test_what_is_skimmed_is_what_the_twin_passes_over(schema: Any, body: list[int]) -> None:
    value = HEAD + bytes(body)
    known = parse_schema(json.dumps(schema))
    plain: dict[str, Any] = {}
    fastavro.parse_schema(schema, plain)
    items_max = ITEMS_MAX + len(value) if known.skimming.unbounded else 1 << 62
    twin = AvroPass(value, HEADER_BYTES, plain, NESTING_MAX, items_max)
    try:
        twin.over(known.reading)
        good = twin.at == len(value)
    except NoValue:
        good = False
    refused = False
    try:
        known.skimming.check(value, HEADER_BYTES)
    except BadRow:
        refused = True
    assert refused != good
    if good:
        stream = io.BytesIO(value)
        stream.seek(HEADER_BYTES)
        try:
            fastavro.schemaless_reader(stream, known.reading, None)
        except UnicodeDecodeError:
            return
        assert stream.tell() == twin.at


@given(schemas(), st.randoms(use_true_random=False))
def test_what_avro_writes_is_skimmed_and_read(schema: Any, random: Any) -> None:
    known = parse_schema(json.dumps(schema))
    named: dict[str, Any] = {}
    parsed = fastavro.parse_schema(schema, named)

    def some(kind: Any, depth: int = 0) -> Any:
        if isinstance(kind, list):
            return None if depth > 3 or random.random() < 0.5 else some(kind[1], depth + 1)
        if isinstance(kind, str) and kind in named:
            return some(named[kind], depth)
        name = kind if isinstance(kind, str) else kind["type"]
        match name:
            case "record":
                return {each["name"]: some(each["type"], depth + 1) for each in kind["fields"]}
            case "array":
                return [some(kind["items"], depth + 1) for _ in range(random.randrange(3))]
            case "map":
                return {
                    f"k{at}": some(kind["values"], depth + 1) for at in range(random.randrange(3))
                }
            case "fixed":
                return bytes(kind["size"])
            case "enum":
                return random.choice(kind["symbols"])
            case "bytes":
                return bytes(random.randrange(200))
            case "string":
                return "é" * random.randrange(100)
            case "null":
                return None
            case "boolean":
                return random.random() < 0.5
            case "int" | "long":
                return random.choice([0, -1, 2**31 - 1, -(2**31)])
        return random.choice([0.0, 1.5, -2.0])

    stream = io.BytesIO()
    stream.write(HEAD)
    value: Any = some(parsed)
    fastavro.schemaless_writer(stream, parsed, value)
    assert read_value(stream.getvalue(), known) == value
    some_names = [name for name in value if random.random() < 0.5]
    kept = kept_of(known, [Column(name, "text") for name in some_names])
    assert (kept is None) == (len(some_names) == len(value))
    found = read_value(stream.getvalue(), known, kept)
    assert found == {name: value[name] for name in some_names}


def test_a_type_may_be_defined_by_a_field_that_no_column_names() -> None:
    schema = record({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "E", ["null", "R"])
    assert decoded(schema, b"\x00\x02\x00", Column("f1", "text")) == (["B"], [])
    assert decoded(schema, b"\x00\x02\x02\x02\x00\x00", Column("f2.f1", "text")) == (["A"], [])


def test_no_object_is_made_of_fields_that_no_column_names() -> None:
    """A record of a megabyte of them held the interpreter for a third of a second."""
    schema = record("string", {"type": "array", "items": ["null", "string"]}, "string")
    stream = io.BytesIO()
    stream.write(HEAD)
    value = {"f0": "a", "f1": [""] * 100_000, "f2": "b"}
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    reader = AvroReader([Column("f2", "text"), Column("f0", "text")])
    reader.know(1, json.dumps(schema))
    reader(stream.getvalue())
    tracemalloc.start()
    try:
        assert reader(stream.getvalue()) == ["b", "a"]
        assert tracemalloc.get_traced_memory()[1] < 50_000
    finally:
        tracemalloc.stop()


A = {"type": "record", "name": "n.A", "fields": [{"name": "x", "type": "long"}]}
B = {"type": "record", "name": "n.B",
     "fields": [{"name": "a", "type": "n.A"}, {"name": "y", "type": "string"}]}  # fmt: skip


def referred(schema: object, body: bytes, column: Column) -> tuple[list[object], list[str]]:
    """Cells and letters of one record, whose schema refers to two others."""
    reader = AvroReader([column])
    reader.know(1, json.dumps(schema), [json.dumps(A), json.dumps(B)])
    rows, letters = RowDecoder([column], AvroFormat(), reader).decode([0], [0], [HEAD + body])
    return rows[column.name].to_pylist(), letters["reason"].to_pylist()


def test_a_union_of_references_is_read() -> None:
    """The reader parsed such a union anew, without what its names refer to."""
    assert referred(["null", "n.B"], b"\x02\x06\x02q", Column("a.x", "int")) == ([3], [])
    assert referred(["null", "n.B"], b"\x02\x06\x02q", Column("y", "text")) == (["q"], [])


def test_a_field_of_one_of_several_records_is_refused_with_its_name() -> None:
    """A nullable column was null, whichever record it was."""
    rows, (reason,) = referred(["n.A", "n.B"], b"\x02\x06\x02q", Column("y", "text", True))
    assert (rows, reason) == ([], "the value is a union of several records")
    inner = record(["n.A", "n.B"])
    rows, (reason,) = referred(inner, b"\x00\x06", Column("f0.x", "int", True))
    assert (rows, reason) == ([], "the column f0.x is within a union of several types")


@pytest.mark.parametrize("kind", ["record", "enum", "fixed", "array", "map", "error", "union"])
def test_a_type_may_be_called_as_a_kind_of_types(kind: str) -> None:
    """An enum called `enum` recursed without an end; a record called `record` was refused."""
    enum = {"type": "enum", "name": kind, "symbols": ["NEW", "PAID"]}
    assert decoded(record(enum), b"\x02", Column("f0", "text")) == (["PAID"], [])
    inner = record("long", name=kind)
    assert decoded(record(inner), b"\x06", Column("f0.f0", "int")) == ([3], [])


def test_a_reference_to_a_type_called_as_a_kind_is_refused() -> None:
    """The reader took an empty array for a symbol of an enum called `array`."""
    enum = {"type": "enum", "name": "array", "symbols": ["NEW", "PAID"]}
    rows, (reason,) = decoded(record(enum, "array"), b"\x02\x02", Column("f1", "text"))
    assert not rows
    assert "give array a namespace" in reason
    spaced = record({**enum, "namespace": "n"}, "n.array")
    assert decoded(spaced, b"\x02\x02", Column("f1", "text")) == (["PAID"], [])
