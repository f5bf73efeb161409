"""Schemas of the collections that resources make beside their own; their rows belong to the
services that write them.
"""

from __future__ import annotations

import pyarrow as pa

from tidemill.catalog.record_rows import PredicateShape

OUTBOX_SCHEMA = pa.schema(
    [
        pa.field("key", pa.string()),
        pa.field("action", pa.string()),
        pa.field("instant", pa.int64()),
        pa.field("record", pa.string()),
        pa.field("arguments", pa.string()),
        pa.field("event_time", pa.int64()),
    ]
)
"""Rows of `a/outbox`, one for each firing.

`instant` is when the event became present, `record` its text, `arguments` a JSON list; `event_time`
is null for a timeless fact. A row without a key is no firing, but the progress of an eager action.
"""

FOLLOWED_OUTBOX_SCHEMA = pa.schema(
    [*OUTBOX_SCHEMA, pa.field("event", pa.string()), pa.field("phase", pa.string())]
)
"""Rows of `a/outbox` of an action that follows its events, one for each phase of an event.

`event` is the key of the event, equal in all of its rows; `phase` is begin, change or end.
"""

DONE_SCHEMA = pa.schema([pa.field("key", pa.string())])
"""Rows of `a/done`: keys of firings whose effects have happened."""

EVENT_MAP_SCHEMA = pa.schema(
    [
        pa.field("partition", pa.int64()),
        pa.field("frontier", pa.int64()),
        pa.field("instant", pa.int64()),
    ]
)
"""Rows of `s/eventmap`: a partition's promise and when it last spoke; the stream's frontier and
the first instant at which it stood there."""

ERROR_SCHEMA = pa.schema([pa.field("error", pa.string())])
"""Rows of `v/errors`: errors of the program of a view."""

STATE_SCHEMA = pa.schema(
    [pa.field("rule", pa.int64()), pa.field("kind", pa.string()), pa.field("solution", pa.string())]
)
"""Rows of `v/state`: the state that one window of a view hands to the next."""


def outbox_schema(follow: bool, *, limited: bool = False) -> pa.Schema:
    """Columns of `a/outbox`, of an action that follows its events or tells when they begin.

    One that is `limited` marks the firings that it does not tell.
    """
    schema = FOLLOWED_OUTBOX_SCHEMA if follow else OUTBOX_SCHEMA
    return schema.append(pa.field("limited", pa.bool_())) if limited else schema


def corrections_schema(shape: PredicateShape) -> pa.Schema:
    """Columns of `a/corrections`: the event's arguments by name, behind what happened."""
    fields = [
        pa.field("key", pa.string()), pa.field("sequence", pa.int64()),
        pa.field("instant", pa.int64()), pa.field("event_time", pa.int64()),
        pa.field("old", pa.string()), pa.field("new", pa.string()),
    ]  # fmt: skip
    for at in range(shape.arguments):
        field = shape.schema.field(at)
        fields.append(pa.field(f"arg_{field.name}", field.type))
    return pa.schema(fields)


def event_schema(data: pa.Schema) -> pa.Schema:
    """The columns of an event collection: those of the data, then `time` and `expires`."""
    return pa.schema([*data, pa.field("time", pa.int64()), pa.field("expires", pa.int64())])


FILES_SCHEMA = pa.schema([pa.field("partition", pa.int64()), pa.field("path", pa.string())])
"""Which file of a source is which partition."""
