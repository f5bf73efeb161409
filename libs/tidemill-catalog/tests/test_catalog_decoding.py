"""Records whose schemas come from a registry: a fate once decided stays, whatever it says later."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.catalog.records.debezium import change_reader
from tidemill.catalog.records.decisions import DECISIONS_SCHEMA, Decision, Decisions
from tidemill.catalog.records.decoding import RecordDecoder
from tidemill.catalog.records.schemas import SchemaBook
from tidemill.errors import Unavailable, UsageError
from tidemill.reclock import Change, pack_row
from tidemill.runtime.clock import ManualClock
from tidemill.runtime.formats import BadRow
from tidemill.runtime.formats.avro import AvroReader
from tidemill.runtime.formats.lengths import too_long
from tidemill.runtime.formats.registry import HttpRegistry, RegistryAccess
from tidemill.runtime.log import LogRecord
from tidemill.runtime.resources import SourceSpec, load_resources
from tidemill.runtime.resources.decoding import record_shape
from tidemill.shard import Collections, Description, MemoryBlob, MemoryConsensus
from tidemill.testkit.schema_registry import Registry, schema_registry

ITEM = {
    "type": "record",
    "name": "Item",
    "namespace": "shop",
    "fields": [{"name": "n", "type": "long"}],
}
CHANGE = {
    "type": "record", "name": "Envelope", "fields": [
        {"name": "before", "type": ["null", ITEM]}, {"name": "after", "type": ["null", "shop.Item"]},
        {"name": "op", "type": "string"},
    ],
}  # fmt: skip


@pytest.mark.parametrize("row", ["upsert", "debezium"])
def test_a3_a_change_to_a_row_that_is_too_long_is_a_letter_and_the_row_stays(row: str) -> None:
    """A3: its place, its size, the limit and the setting are in the letter; other changes are
    taken.
    """
    envelope = {
        "upsert": "keyFormat: {json: {}}, envelope: {upsert: {key: [k]}}",
        "debezium": "envelope: {debezium: {key: [k]}}",
    }[row]
    text = (
        "{apiVersion: tidemill.dev/v1alpha1, kind: Source, metadata: {name: s}, spec: {kafka: {topic: t}, "
        f"format: {{json: {{}}}}, columns: [{{name: k, type: int}}, {{name: v, type: text}}], {envelope}}}}}"
    )
    (resource,) = load_resources(text)
    assert isinstance(resource.spec, SourceSpec)
    records = []
    for offset, size in enumerate((10, 500, 20)):
        cells = {"k": 1, "v": "x" * size}
        value = (
            {"v": cells["v"]} if row == "upsert" else {"op": "r", "before": None, "after": cells}
        )
        records.append(LogRecord(0, offset, b'{"k": 1}', json.dumps(value).encode(), 0))
    shape = record_shape(resource.spec, resource.spec.columns, row_bytes=100)
    changes, letters = RecordDecoder(shape).decode_now(records)
    assert changes["_offset"].to_pylist() == [0, 2]
    assert letters["offset"].to_pylist() == [1]
    (reason,) = letters["reason"].to_pylist()
    assert reason.startswith("its row has 5")
    assert reason.endswith("bytes, more than 100 (limits.row_bytes)")


@pytest.fixture
async def registry() -> AsyncIterator[Registry]:
    async with schema_registry() as found:
        yield found


@pytest.fixture
async def collections() -> Collections:
    ids = map(str, itertools.count())
    made = Collections(MemoryConsensus(), MemoryBlob(), ManualClock(1_000), ids.__next__)
    await made.create("s/decided", Description(DECISIONS_SCHEMA, kind="catalog", retain_ms=1))
    return made


def decoder(collections: Collections, registry: Registry, more: str = "") -> RecordDecoder:
    """A process that knows nothing but what is in the collections."""
    text = (
        "{apiVersion: tidemill.dev/v1alpha1, kind: Source, metadata: {name: s}, spec: {kafka: {topic: t},"
        f" format: {{avro: {{registry: {{url: '{registry.url}'}}}}}}, columns: [{{name: n, type: int}}]{more}}}}}"
    )
    (resource,) = load_resources(text)
    assert isinstance(resource.spec, SourceSpec)
    shape = record_shape(resource.spec, resource.spec.columns)

    def book(field: str, reader: AvroReader) -> SchemaBook:
        access = RegistryAccess(registry.url)
        return SchemaBook(HttpRegistry(access), field, Decisions(collections, "s/decided"), reader)

    return RecordDecoder(shape, book)


def records(first: int, *values: bytes) -> list[LogRecord]:
    return [LogRecord(0, first + at, None, value, 0) for at, value in enumerate(values)]


async def fates(decoder: RecordDecoder, given: list[LogRecord]) -> dict[int, object]:
    """Offset → the number in the row, or the reason why there is none."""
    rows, letters = await decoder.decode(given)
    found = dict(zip(rows["_offset"].to_pylist(), rows["n"].to_pylist(), strict=True))
    return found | dict(
        zip(letters["offset"].to_pylist(), letters["reason"].to_pylist(), strict=True)
    )


async def test_a_number_that_was_unknown_makes_the_same_letters_after_it_is_registered(
    collections: Collections, registry: Registry
) -> None:
    number = registry.register("items", ITEM)
    value, unknown = registry.record(number, {"n": 7}), b"\0\0\0\0\x02\x0e"
    given = records(0, value, unknown, value, unknown)
    reason = "the schema registry has no schema 2"
    wanted = {0: 7, 1: reason, 2: 7, 3: reason}
    first = decoder(collections, registry)
    assert await fates(first, given) == wanted
    assert registry.register("items", ITEM) == 2
    again = decoder(collections, registry)
    assert await fates(again, given) == wanted
    for process in (first, again):
        assert await fates(process, records(4, unknown)) == {4: 7}
        assert await fates(process, given) == wanted
        await process.close()


async def test_what_is_known_needs_no_registry_and_what_is_not_waits_for_it(
    collections: Collections, registry: Registry
) -> None:
    number = registry.register("items", ITEM)
    first = decoder(collections, registry)
    assert await fates(first, records(0, registry.record(number, {"n": 1}))) == {0: 1}
    await first.close()
    registry.away = True
    again = decoder(collections, registry)
    assert await fates(again, records(1, registry.record(number, {"n": 2}))) == {1: 2}
    with pytest.raises(Unavailable, match="answered 503"):
        await again.decode(records(2, b"\0\0\0\0\x05\x02"))
    decided = await Decisions(collections, "s/decided").all()
    assert [(each.about, each.number) for each in decided] == [("schema", number)]
    await again.close()


async def test_a_schema_that_refers_to_others_is_read_with_them(
    collections: Collections, registry: Registry
) -> None:
    registry.register("items", ITEM)
    reference = {"name": "shop.Item", "subject": "items", "version": 1}
    outer = {"type": "record", "name": "Order", "fields": [
        {"name": "item", "type": "shop.Item"}, {"name": "n", "type": "long"}]}  # fmt: skip
    number = registry.register("orders", outer, [reference])
    other = registry.register("texts", "message M {}", kind="PROTOBUF")
    value = registry.record(number, {"item": {"n": 1}, "n": 5}, [ITEM])
    process = decoder(collections, registry)
    given = records(0, value, b"\0\0\0\0" + bytes([other]))
    assert await fates(process, given) == {
        0: 5, 1: "its schema is one of PROTOBUF, not of Avro",
    }  # fmt: skip
    await process.close()


async def test_a_registry_may_ask_for_a_password(registry: Registry) -> None:
    number = registry.register("items", ITEM)
    registry.login = ("me", "secret")
    for password, knows in (("wrong", False), ("secret", True)):
        access = RegistryAccess(registry.url, "me", password)
        assert password not in repr(access)
        client = HttpRegistry(access)
        if knows:
            found = await client.schema(number)
            assert found is not None
            assert json.loads(found.text) == ITEM
        else:
            with pytest.raises(UsageError, match="refuses to answer"):
                await client.schema(number)
        await client.close()
    nobody = HttpRegistry(RegistryAccess("http://127.0.0.1:1"))
    with pytest.raises(Unavailable, match="does not answer"):
        await nobody.schema(1)
    await nobody.close()


async def test_changes_of_debezium_come_in_avro_as_well(
    collections: Collections, registry: Registry
) -> None:
    number = registry.register("changes", CHANGE)

    def change(op: str, before: int | None, after: int | None) -> bytes:
        row = {"before": before, "after": after}
        made = {name: None if n is None else {"n": n} for name, n in row.items()}
        return registry.record(number, {**made, "op": op})

    process = decoder(collections, registry, ", envelope: {debezium: {key: [n]}}")
    given = records(0, change("c", None, 1), change("u", 1, 1), change("d", 1, None), b"junk")
    rows, letters = await process.decode(given)
    one = pack_row([1])
    found = [
        Change(row["_op"], row["_key"], row["_before"], row["_after"]) for row in rows.to_pylist()
    ]
    assert found == [
        Change("create", one, None, one), Change("update", one, one, one),
        Change("delete", one, one, None),
    ]  # fmt: skip
    assert letters["offset"].to_pylist() == [3]
    await process.close()


async def test_of_two_decisions_about_one_subject_the_first_counts(
    collections: Collections,
) -> None:
    one, other = Decisions(collections, "s/decided"), Decisions(collections, "s/decided")
    assert await one.all() == await other.all() == []
    await one.make([Decision("topic", "t", text="a")])
    await other.make([Decision("topic", "t", text="b"), Decision("topic", "u", text="c")])
    for decisions in (one, other, Decisions(collections, "s/decided")):
        found = await decisions.find(Decision("topic", "t"))
        assert found is not None
        assert found.text == "a"


KEYS = st.sampled_from([None, b"a", b"b", b"\xc3\xa9", b"\xff", b""])
VALUES = st.sampled_from(
    [
        None, b"", b"{}", b'{"n": 1, "t": "x"}', b'{"n":2,"t":"y"}', b'{"n": null, "t": "z"}',
        b'{"n": 3}', b'{"n": 4, "t": "' + b"l" * 90 + b'"}', b"tidemill-heartbeat: 7",
        '{"n": 5, "t": "\u00e9"}'.encode(),
    ]
)  # fmt: skip


@given(st.lists(st.tuples(KEYS, VALUES), max_size=90))
def test_keyed_records_are_the_changes_that_each_is_alone(
    cells: list[tuple[bytes | None, bytes | None]],
) -> None:
    """The twin reads one record after the other."""
    text = (
        "{apiVersion: tidemill.dev/v1alpha1, kind: Source, metadata: {name: s}, spec: {kafka: {topic: t}, "
        "columns: [{name: n, type: int}, {name: k, type: text}, {name: t, type: text, nullable: true}], "
        "keyFormat: {text: {}}, envelope: {upsert: {key: [k]}}}}"
    )
    (resource,) = load_resources(text)
    assert isinstance(resource.spec, SourceSpec)
    shape = record_shape(resource.spec, resource.spec.columns, row_bytes=80)
    decoder = RecordDecoder(shape)
    given_records = [LogRecord(at % 3, at, *each, 0) for at, each in enumerate(cells)]
    changes, letters = decoder.decode_now(given_records)
    expected, reasons = [], {}
    for record in given_records:
        try:
            expected.append((change_of(decoder, record), record.partition, record.offset))
        except BadRow as reason:
            reasons[record.offset] = str(reason)
    found = [tuple(row.values()) for row in changes.to_pylist()]
    assert found == [(*change, *place) for change, *place in expected]
    assert (
        dict(zip(letters["offset"].to_pylist(), letters["reason"].to_pylist(), strict=True))
        == reasons
    )
    assert letters["offset"].to_pylist() == sorted(reasons)


def change_of(decoder: RecordDecoder, record: LogRecord) -> Change:
    """The change that a record of a text key, and of a number and a text, is."""
    if record.key is None:
        raise BadRow("the record has no key")
    assert decoder._keys is not None
    try:
        key = decoder._keys.cells(record.key)
    except BadRow as reason:
        raise BadRow(f"its key: {reason}") from None
    if record.value is None:
        return Change("set", pack_row(key), None, None)
    number, text = decoder._values.cells(record.value)
    row = pack_row([number, *key, text])
    if len(row) > 80:
        raise BadRow(too_long(len(row), 80))
    return Change("set", pack_row(key), None, row)


@pytest.mark.parametrize(
    ("kind", "unsent"),
    [
        ("text", '"__debezium_unavailable_value"'),
        ("bytes", '"X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="'),
    ],
)
def test_a_value_that_postgresql_did_not_send_is_no_value(kind: str, unsent: str) -> None:
    """The placeholder of Debezium for a long value without a change replaced the value."""
    (resource,) = load_resources(
        "{apiVersion: tidemill.dev/v1alpha1, kind: Source, metadata: {name: s}, spec: {kafka: {topic: t}, "
        f"format: {{json: {{}}}}, columns: [{{name: k, type: int}}, {{name: v, type: {kind}}}], "
        "envelope: {debezium: {key: [k], before: key}}}}"
    )
    assert isinstance(resource.spec, SourceSpec)
    read = change_reader(record_shape(resource.spec, resource.spec.columns), None)

    def change(value: str) -> LogRecord:
        told = f'{{"op": "u", "before": {{"k": 1}}, "after": {{"k": 1, "v": {value}}}}}'
        return LogRecord(0, 1, None, told.encode(), 5)

    with pytest.raises(BadRow, match=r"the column v was not sent.*REPLICA IDENTITY FULL"):
        read(change(unsent))
    longer = '"AAAA"' if kind == "bytes" else '"about __debezium_unavailable_value"'
    assert read(change(longer)) is not None
