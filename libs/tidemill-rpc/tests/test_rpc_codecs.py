"""Domain types survive the wire."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.arrangement.arrow_bytes import pack_table
from tidemill.errors import UsageError
from tidemill.rpc import codecs, codecs_storage
from tidemill.rpc.messages import (
    Answer,
    CollectionInfo,
    CollectionShape,
    ColumnInfo,
    HolderInfo,
    ResourceStatus,
)
from tidemill.time import U64_MAX, frontier
from tidemill_protos.catalog.v1 import catalog_pb2 as catalog
from tidemill_protos.query.v1 import query_pb2 as query
from tidemill_protos.storage.v1 import storage_pb2 as storage


@pytest.mark.parametrize("held", [frontier(), frontier(0), frontier(U64_MAX)])
def test_a_frontier_survives_and_the_empty_one_is_not_an_absent_one(held: object) -> None:
    message = storage.Frontier.FromString(codecs.frontier_out(held).SerializeToString())  # type: ignore[arg-type]
    assert codecs.frontier_in(message) == held
    carrier = query.Answer(upper=codecs.frontier_out(frontier()))
    assert carrier.HasField("upper")
    assert not carrier.HasField("since")


def test_an_absent_frontier_is_refused_where_one_must_be_stated() -> None:
    with pytest.raises(UsageError) as caught:
        codecs.stated_frontier(storage.DowngradeRequest(), "to")
    assert caught.value.details == {"reason": "frontier"}


@given(rows=st.integers(0, 40), room=st.integers(1, 400))
@settings(max_examples=50, deadline=None)
def test_parts_together_are_the_table(rows: int, room: int) -> None:
    table = pa.table({"n": pa.array(range(rows), pa.int64()), "t": ["é" * i for i in range(rows)]})
    sent = [codecs.table_in(pack_table(part)) for part in codecs.parts(table, room)]
    assert sent
    assert pa.concat_tables(sent).equals(table)


def test_an_answer_of_many_parts_comes_back_whole() -> None:
    table = pa.table({"n": pa.array(range(400_000), pa.int64()), "_diff": [1] * 400_000})
    answer = Answer(table, 5, frontier(2), frontier(), "v/late")
    sent = list(codecs.answer_out(answer))
    assert max(message.ByteSize() for message in sent) < 2 * codecs.PART_BYTES_MAX
    assert codecs.answer_in(sent) == answer


def test_a3_no_message_of_a_long_answer_keeps_the_event_loop_for_long() -> None:
    """One of a mebibyte takes it four times as long as one of the present size."""
    numbers = pa.array(range(200_000), pa.int64())
    answer = Answer(pa.table({"n": numbers, "_diff": numbers}), 5, frontier(2), frontier(), "v")
    assert max(message.ByteSize() for message in codecs.answer_out(answer)) < 1 << 19


def test_bytes_that_are_no_arrow_stream_are_refused() -> None:
    with pytest.raises(UsageError):
        codecs.table_in(b"no arrow at all")


def test_a_collection_keeps_what_is_none_and_what_is_zero_apart() -> None:
    info = CollectionInfo(
        "v/late", "view", "air", frontier(1), frontier(), 0,
        (HolderInfo("a", frontier(1), None), HolderInfo("b", frontier(2), 9)), 7, 2, 99,
        (ColumnInfo("f", "string", False),),
    )  # fmt: skip
    assert codecs.collection_in(codecs.collection_out(info)) == info


@pytest.mark.parametrize(
    "status",
    [
        ResourceStatus("View", "v", ready=False),
        ResourceStatus(
            "Source", "s", True, "Running", "ok", frontier(1), frontier(), 0, 5, "kind: Source",
            {"partitions": [{"partition": 0, "bound": 12}], "rate": 1.5}, 0.0, 7, 9_000,
        ),
    ],
)  # fmt: skip
def test_a_resource_survives_with_and_without_its_optional_fields(status: ResourceStatus) -> None:
    assert codecs.resource_in(codecs.resource_out(status)) == status


def test_an_outcome_that_is_not_known_is_refused() -> None:
    with pytest.raises(UsageError):
        codecs.applied_in(catalog.Applied(kind="View", name="v"))


@pytest.mark.parametrize("retain_ms", [None, 0, 600_000])
def test_a_shape_survives(retain_ms: int | None) -> None:
    schema = pa.schema([pa.field("a", pa.int64(), nullable=False), pa.field("b", pa.string())])
    shape = CollectionShape(schema, "source", "air", ("a",), retain_ms, True, True)
    assert codecs_storage.shape_in(codecs_storage.shape_out(shape)) == shape


def test_bytes_that_are_no_schema_are_refused() -> None:
    with pytest.raises(UsageError):
        codecs_storage.shape_in(storage.CollectionShape(arrow_schema=b"none"))


def test_a_capability_that_says_no_right_is_refused() -> None:
    with pytest.raises(UsageError):
        codecs_storage.capability_in(storage.Capability(id="x", collection="c"))
