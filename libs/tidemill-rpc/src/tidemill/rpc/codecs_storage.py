"""Domain types of the storage commands to wire messages and back, without loss."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pyarrow as pa

from tidemill.arrangement.arrow_bytes import SCHEMA_BYTES_MAX, pack_table, read_schema
from tidemill.errors import UsageError
from tidemill.rpc.codecs import (
    frontier_in,
    frontier_out,
    json_out,
    parts,
    table_in,
)
from tidemill.rpc.messages import (
    Appended,
    AppendOutcome,
    CapabilityPair,
    Changes,
    CollectionShape,
    Comparison,
    Condition,
    Event,
    HeldCapability,
    Progress,
    Right,
    UpperMismatch,
)
from tidemill_protos.storage.v1 import storage_pb2 as storage


def capability_out(held: HeldCapability) -> storage.Capability:
    """The message of a capability, secret included."""
    return storage.Capability(
        id=held.id,
        collection=held.collection,
        frontier=frontier_out(held.frontier),
        right=storage.RIGHT_READ if held.right is Right.READ else storage.RIGHT_WRITE,
    )


def capability_in(message: storage.Capability) -> HeldCapability:
    """The capability of a message. Raises UsageError if it does not say what it allows."""
    if message.right == storage.RIGHT_READ:
        right = Right.READ
    elif message.right == storage.RIGHT_WRITE:
        right = Right.WRITE
    else:
        raise UsageError("the capability does not say what it allows", reason="right")
    return HeldCapability(message.id, message.collection, frontier_in(message.frontier), right)


_COMPARISONS = {
    Comparison.EQUAL: storage.COMPARISON_EQUAL,
    Comparison.NOT_EQUAL: storage.COMPARISON_NOT_EQUAL,
    Comparison.LESS: storage.COMPARISON_LESS,
    Comparison.LESS_OR_EQUAL: storage.COMPARISON_LESS_OR_EQUAL,
    Comparison.GREATER: storage.COMPARISON_GREATER,
    Comparison.GREATER_OR_EQUAL: storage.COMPARISON_GREATER_OR_EQUAL,
}
_COMPARISONS_BACK = {wire: comparison for comparison, wire in _COMPARISONS.items()}


def condition_out(condition: Condition) -> storage.Condition:
    """The message of a condition."""
    return storage.Condition(
        column=condition.column,
        comparison=_COMPARISONS[condition.comparison],
        value_json=json_out(condition.value),
    )


def condition_in(message: storage.Condition) -> Condition:
    """The condition of a message. Raises UsageError if it is none."""
    comparison = _COMPARISONS_BACK.get(message.comparison)
    if comparison is None:
        raise UsageError(f"the condition on {message.column} compares nothing", reason="comparison")
    try:
        value = json.loads(message.value_json)
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"the condition on {message.column} has no JSON: {error}", reason="json"
        ) from error
    return Condition(message.column, comparison, value)


def pair_in(
    message: storage.CreateResponse | storage.AcquireCapabilitiesResponse,
) -> CapabilityPair:
    """The capabilities of a response."""
    return CapabilityPair(
        read=capability_in(message.read),
        write=capability_in(message.write) if message.HasField("write") else None,
    )


def shape_out(shape: CollectionShape) -> storage.CollectionShape:
    """The message of a collection to create."""
    return storage.CollectionShape(
        arrow_schema=shape.schema.serialize().to_pybytes(),
        kind=shape.kind,
        timeline=shape.timeline,
        key=shape.key,
        retain_ms=shape.retain_ms,
        allow_negative=shape.allow_negative,
        user_writable=shape.user_writable,
    )


def shape_in(message: storage.CollectionShape) -> CollectionShape:
    """The collection to create. Raises UsageError if the schema is not one."""
    try:
        schema = read_schema(message.arrow_schema, SCHEMA_BYTES_MAX)
    except pa.ArrowInvalid as error:
        raise UsageError(
            f"the schema is not one of a collection: {error}", reason="arrow"
        ) from error
    return CollectionShape(
        schema=schema,
        kind=message.kind,
        timeline=message.timeline,
        key=tuple(message.key),
        retain_ms=message.retain_ms if message.HasField("retain_ms") else None,
        allow_negative=message.allow_negative,
        user_writable=message.user_writable,
    )


def append_out(outcome: AppendOutcome) -> storage.UpdateAndDowngradeResponse:
    """The reply of an append; losing the race is a reply, not an error."""
    match outcome:
        case Appended(upper):
            appended = storage.Appended(upper=frontier_out(upper))
            return storage.UpdateAndDowngradeResponse(appended=appended)
        case UpperMismatch(current):
            mismatch = storage.UpperMismatch(current=frontier_out(current))
            return storage.UpdateAndDowngradeResponse(upper_mismatch=mismatch)


def append_in(message: storage.UpdateAndDowngradeResponse) -> AppendOutcome:
    """The outcome of an append."""
    if message.WhichOneof("outcome") == "appended":
        return Appended(frontier_in(message.appended.upper))
    if message.WhichOneof("outcome") == "upper_mismatch":
        return UpperMismatch(frontier_in(message.upper_mismatch.current))
    raise UsageError("the reply has no outcome", reason="outcome")


def updates_out(event: Event) -> Iterator[storage.SubscribeAtResponse]:
    """The event of a storage subscription; changes in parts."""
    match event:
        case Changes(table):
            for part in parts(table):
                yield storage.SubscribeAtResponse(changes_arrow_ipc=pack_table(part))
        case Progress(upper):
            yield storage.SubscribeAtResponse(progress=frontier_out(upper))


def updates_in(message: storage.SubscribeAtResponse) -> Event:
    """The event of one message of a storage subscription."""
    if message.WhichOneof("event") == "changes_arrow_ipc":
        return Changes(table_in(message.changes_arrow_ipc))
    if message.WhichOneof("event") == "progress":
        return Progress(frontier_in(message.progress))
    raise UsageError("the message has neither changes nor progress", reason="event")
