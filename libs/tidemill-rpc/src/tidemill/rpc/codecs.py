"""Domain types to wire messages and back, without loss.

Every pair of functions is `x_out` (to the wire) and `x_in` (from it). A wrong message of the peer
(no frontier where one belongs, bytes that are not Arrow) is a UsageError.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import pyarrow as pa
from google.protobuf.message import Message

from tidemill.arrangement.arrow_bytes import pack_table, read_stream
from tidemill.errors import UsageError
from tidemill.rpc.messages import (
    Answer,
    Applied,
    Changes,
    CollectionInfo,
    ColumnInfo,
    Decision,
    Event,
    HolderInfo,
    Json,
    Outcome,
    Progress,
    ResourceStatus,
    TimestampExplanation,
    Translation,
)
from tidemill.rpc.status import sayable
from tidemill.time import PARTITIONED, Antichain, Frontier, Partitions, SourceFrontier, frontier
from tidemill_protos.catalog.v1 import catalog_pb2 as catalog
from tidemill_protos.query.v1 import query_pb2 as query
from tidemill_protos.storage.v1 import storage_pb2 as storage

ORIGIN = frontier(0)
PART_BYTES_MAX = 256 << 10
"""A longer table is sent in parts of about this size.

To write, encrypt and send one takes the event loop less than a millisecond.
"""


def frontier_out(held: Frontier) -> storage.Frontier:
    """The message of a frontier; the empty frontier is a message without times."""
    return storage.Frontier(times=held.elements)


def frontier_in(message: storage.Frontier) -> Frontier:
    """The frontier of a message that is present."""
    return frontier(*message.times)


def stated_frontier(message: Message, name: str) -> Frontier:
    """The frontier of a field that must be there; absent is not the same as empty."""
    if not message.HasField(name):
        raise UsageError(f"the request states no frontier in its field {name!r}", reason="frontier")
    return frontier_in(getattr(message, name))


def table_in(data: bytes, *, foreign: bool = False) -> pa.Table:
    """The table of an Arrow IPC stream, every value looked at; by `read_stream`.

    Raises UsageError if it is not one.
    """
    try:
        return read_stream(data, foreign=foreign)
    except pa.ArrowInvalid as error:
        raise UsageError(
            f"rows are not an Arrow stream that can be taken: {error}", reason="arrow"
        ) from error


def parts(table: pa.Table, bytes_max: int = PART_BYTES_MAX) -> Iterator[pa.Table]:
    """Consecutive slices of up to twice `bytes_max`, at least one; together they are the table.

    A row that is longer is a slice of its own. Cost: O(columns) for each slice.
    """
    step = max(1, table.num_rows * bytes_max // max(bytes_max, table.nbytes))
    if step >= table.num_rows:
        yield table
        return
    for start in range(0, table.num_rows, step):
        piece = table.slice(start, step)
        if piece.nbytes > 2 * bytes_max:  # long rows stand together
            yield from parts(piece, bytes_max)
        else:
            yield piece


def answer_out(answer: Answer) -> Iterator[query.Answer]:
    """The answer in parts."""
    for part in parts(answer.table):
        yield query.Answer(
            rows=query.Rows(arrow_ipc=pack_table(part)),
            as_of=answer.as_of,
            since=frontier_out(answer.since),
            upper=frontier_out(answer.upper),
            collection=answer.collection,
        )


def answer_in(received: list[query.Answer]) -> Answer:
    """The answer whose parts were received, in order."""
    if not received:
        raise UsageError("the answer has no part", reason="empty")
    first = received[0]
    return Answer(
        table=pa.concat_tables([table_in(part.rows.arrow_ipc) for part in received]),
        as_of=first.as_of,
        since=frontier_in(first.since),
        upper=frontier_in(first.upper),
        collection=first.collection,
    )


def event_out(event: Event) -> Iterator[query.SubscribeResponse]:
    """The event; changes in parts."""
    match event:
        case Changes(table):
            for part in parts(table):
                yield query.SubscribeResponse(changes=query.Rows(arrow_ipc=pack_table(part)))
        case Progress(upper):
            yield query.SubscribeResponse(progress=frontier_out(upper))


def event_in(message: query.SubscribeResponse) -> Event:
    """The event of one message."""
    if message.WhichOneof("event") == "changes":
        return Changes(table_in(message.changes.arrow_ipc))
    if message.WhichOneof("event") == "progress":
        return Progress(frontier_in(message.progress))
    raise UsageError("the message has neither changes nor progress", reason="event")


def json_out(value: Json | Mapping[str, Json]) -> str:
    """Compact JSON."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def collection_out(info: CollectionInfo) -> query.CollectionInfo:
    """The message of a collection."""
    return query.CollectionInfo(
        id=info.id,
        kind=info.kind,
        timeline=info.timeline,
        since=frontier_out(info.since),
        upper=frontier_out(info.upper),
        lag_ms=info.lag_ms,
        holders=[_holder_out(holder) for holder in info.holders],
        writers=[_holder_out(holder) for holder in info.writers],
        moved_by=info.moved_by,
        updates=info.updates,
        batches=info.batches,
        bytes=info.bytes,
        columns=[
            query.ColumnInfo(name=column.name, type=column.type, nullable=column.nullable)
            for column in info.columns
        ],
    )


def collection_in(message: query.CollectionInfo) -> CollectionInfo:
    """The collection of a message."""
    return CollectionInfo(
        id=message.id,
        kind=message.kind,
        timeline=message.timeline,
        since=frontier_in(message.since),
        upper=frontier_in(message.upper),
        lag_ms=message.lag_ms if message.HasField("lag_ms") else None,
        holders=tuple(_holder_in(holder) for holder in message.holders),
        writers=tuple(_holder_in(holder) for holder in message.writers),
        moved_by=message.moved_by,
        updates=message.updates,
        batches=message.batches,
        bytes=message.bytes,
        columns=tuple(ColumnInfo(c.name, c.type, c.nullable) for c in message.columns),
    )


def _holder_out(holder: HolderInfo) -> query.HolderInfo:
    return query.HolderInfo(
        owner=holder.owner, frontier=frontier_out(holder.frontier), key=holder.key,
        lease_end_ms=holder.lease_end_ms, moved_ms=holder.moved_ms, since_ms=holder.since_ms,
    )  # fmt: skip


def _holder_in(message: query.HolderInfo) -> HolderInfo:
    ends_ms = message.lease_end_ms if message.HasField("lease_end_ms") else None
    return HolderInfo(
        message.owner, frontier_in(message.frontier), ends_ms, message.key, message.moved_ms,
        message.since_ms,
    )  # fmt: skip


def timestamp_out(found: TimestampExplanation) -> query.ExplainTimestampResponse:
    """The message of the choice of an instant."""
    return query.ExplainTimestampResponse(
        chosen=found.chosen,
        reason=found.reason,
        inputs=[
            query.TimestampInput(name=name, collection=collection_out(info))
            for name, info in found.inputs
        ],
    )


def timestamp_in(message: query.ExplainTimestampResponse) -> TimestampExplanation:
    """The choice of an instant of a message."""
    return TimestampExplanation(
        message.chosen if message.HasField("chosen") else None,
        message.reason,
        tuple((each.name, collection_in(each.collection)) for each in message.inputs),
    )


def offsets_out(held: SourceFrontier) -> query.SourceFrontier:
    """The message of a source frontier."""
    ranges = [query.PartitionRange(lo=e.lo, hi=e.hi, offset=e.offset) for e in held]
    return query.SourceFrontier(ranges=ranges)


def offsets_in(message: query.SourceFrontier) -> SourceFrontier:
    """The source frontier of a message: the least of its ranges, in the order of the domain."""
    ranges = (Partitions(each.lo, each.hi, each.offset) for each in message.ranges)
    return Antichain.of(PARTITIONED, ranges)


def translation_out(found: Translation) -> query.TranslateResponse:
    """The message of a translation."""
    return query.TranslateResponse(
        as_of=found.as_of, timeline=found.timeline, bound_at=found.bound_at,
        offsets=offsets_out(found.offsets), since=frontier_out(found.since),
        upper=frontier_out(found.upper),
    )  # fmt: skip


def translation_in(message: query.TranslateResponse) -> Translation:
    """The translation of a message."""
    return Translation(
        message.as_of, message.timeline, message.bound_at, offsets_in(message.offsets),
        frontier_in(message.since), frontier_in(message.upper),
    )  # fmt: skip


_OUTCOMES: dict[Outcome, catalog.Outcome.ValueType] = {
    Outcome.CREATED: catalog.OUTCOME_CREATED,
    Outcome.CONFIGURED: catalog.OUTCOME_CONFIGURED,
    Outcome.UNCHANGED: catalog.OUTCOME_UNCHANGED,
}
_DECISIONS: dict[Decision, catalog.Decision.ValueType] = {
    Decision.APPROVE: catalog.DECISION_APPROVE,
    Decision.ABORT: catalog.DECISION_ABORT,
}


def decision_out(decision: Decision) -> catalog.Decision.ValueType:
    """A decision as the wire has it."""
    return _DECISIONS[decision]


def decision_in(wire: int) -> Decision:
    """A decision. Raises: UsageError for one that is not known."""
    found = next((each for each, known in _DECISIONS.items() if known == wire), None)
    if found is None:
        raise UsageError("decide on approve or abort", reason="decision", value=wire)
    return found


_OUTCOMES_BACK = {wire: outcome for outcome, wire in _OUTCOMES.items()}


def applied_out(applied: Applied) -> catalog.Applied:
    """The message of one applied resource."""
    return catalog.Applied(kind=applied.kind, name=applied.name, outcome=_OUTCOMES[applied.outcome])


def applied_in(message: catalog.Applied) -> Applied:
    """The applied resource of a message."""
    if message.outcome not in _OUTCOMES_BACK:
        raise UsageError("the outcome is not known here", reason="outcome", value=message.outcome)
    return Applied(message.kind, message.name, _OUTCOMES_BACK[message.outcome])


def resource_out(status: ResourceStatus) -> catalog.ResourceStatus:
    """The message of a resource; what is None stays unset."""
    return catalog.ResourceStatus(
        kind=status.kind,
        name=status.name,
        ready=status.ready,
        reason=status.reason,
        message=sayable(status.message),
        since=None if status.since is None else frontier_out(status.since),
        upper=None if status.upper is None else frontier_out(status.upper),
        lag_ms=status.lag_ms,
        age_ms=status.age_ms,
        document_yaml=status.document_yaml,
        details_json=json_out(dict(status.details)) if status.details else "",
        records_per_s=status.records_per_s,
        records_behind=status.records_behind,
        left_ms=status.left_ms,
    )


def resource_in(message: catalog.ResourceStatus) -> ResourceStatus:
    """The resource of a message; what is unset is None."""
    return ResourceStatus(
        kind=message.kind,
        name=message.name,
        ready=message.ready,
        reason=message.reason,
        message=message.message,
        since=frontier_in(message.since) if message.HasField("since") else None,
        upper=frontier_in(message.upper) if message.HasField("upper") else None,
        lag_ms=message.lag_ms if message.HasField("lag_ms") else None,
        age_ms=message.age_ms if message.HasField("age_ms") else None,
        document_yaml=message.document_yaml,
        details=json.loads(message.details_json) if message.details_json else {},
        records_per_s=message.records_per_s if message.HasField("records_per_s") else None,
        records_behind=message.records_behind if message.HasField("records_behind") else None,
        left_ms=message.left_ms if message.HasField("left_ms") else None,
    )
