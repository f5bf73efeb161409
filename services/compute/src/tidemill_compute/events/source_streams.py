"""A source with event time as an event stream: its collections and its second reclocking."""

from __future__ import annotations

from tidemill.catalog.entry import columns_of, row_schema
from tidemill.catalog.schemas import event_schema
from tidemill.catalog.store import Stored
from tidemill.runtime.resources import SourceSpec
from tidemill_compute.events.fold import EventPolicy
from tidemill_compute.events.history import EventTarget
from tidemill_compute.events.progress import Policy
from tidemill_compute.events.rows import EventColumns


def stream_of(stored: Stored) -> tuple[EventTarget, EventPolicy]:
    """Collections of a source in event time, and its policy."""
    spec, prefix = stored.resource.spec, stored.prefix
    assert isinstance(spec, SourceSpec)
    event, rows = spec.event_time, row_schema(columns_of(stored))
    assert event is not None
    columns = EventColumns(
        tuple(rows.names), event.column, event.expires_column,
        None if event.expires_after is None else int(event.expires_after),
    )  # fmt: skip
    idle = None if event.idle_timeout is None else int(event.idle_timeout)
    silence = None if event.silence is None else int(event.silence)
    policy = EventPolicy(
        columns, Policy(int(event.skew), idle, silence), event.late == "correct",
        int(event.max_ahead),
    )  # fmt: skip
    target = EventTarget(
        stored.resource.name, f"{prefix}/raw", f"{prefix}/raw/deadletters", stored.remap,
        f"{prefix}/eventmap", f"{prefix}/deadletters", prefix, event_schema(rows), stored.begins,
    )  # fmt: skip
    return target, policy
