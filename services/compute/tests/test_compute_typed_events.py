"""Events of sources with times, decimals, bytes, UUIDs and JSON: their instants, and late ones."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from uuid import UUID

import pyarrow as pa

from tidemill.arrangement.column_types import arrow_type
from tidemill.catalog.late_events import late_events, late_reason, raw_rows
from tidemill.time.typed import Json
from tidemill_compute.events.rows import NEVER, EventColumns, timed

MOMENT = datetime(2026, 1, 1, 0, 0, 0, 1_999, tzinfo=UTC)
MS = 1_767_225_600_001


def test_a_timestamp_is_the_event_time_cut_down_to_milliseconds() -> None:
    kind = arrow_type("timestamp")
    rows = pa.table(
        {
            "at": pa.array([MOMENT, None, datetime(1969, 1, 1, tzinfo=UTC), MOMENT], kind),
            "to": pa.array([None, None, None, MOMENT + timedelta(seconds=1)], kind),
            "_partition": pa.array([0] * 4, pa.int64()),
            "_offset": pa.array(range(4), pa.uint64()),
        }
    )
    events, refused = timed(rows, EventColumns(("at",), "at", "to"))
    assert events.times.tolist() == [MS, MS]
    assert events.expires.tolist() == [NEVER, MS + 1_000]
    assert sorted(reason for each in refused for reason in each.reasons) == [
        "the event time in column at is negative",
        "the event time in column at is not a time",
    ]


def test_a_time_means_the_same_instant_as_text_and_as_timestamp() -> None:
    texts = [MOMENT.isoformat(), "2026-01-01T01:00:00.001999+01:00", "2026-01-01T00:00:00.0019995Z"]
    rows = pa.table(
        {
            "at": texts,
            "_partition": pa.array([0] * 3, pa.int64()),
            "_offset": pa.array(range(3), pa.uint64()),
        }
    )
    events, refused = timed(rows, EventColumns(("at",), "at", None))
    assert (events.times.tolist(), refused) == ([MS] * 3, [])


def test_a_late_event_reads_back_from_its_dead_letter() -> None:
    values = {
        "timestamp": (MOMENT, MOMENT),
        "date": (date(2026, 1, 1), date(2026, 1, 1)),
        "duration": (timedelta(seconds=90), timedelta(seconds=90)),
        "decimal(6,2)": (Decimal("1.50"), Decimal("1.5")),
        "bytes": (b"\0\xff", b"\0\xff"),
        "uuid": (bytes(15) + b"\1", UUID(int=1)),
        "json": ('{"a":1}', Json('{"a":1}')),
        "text": ("a", "a"),
    }
    rows = pa.table(
        {kind: pa.array([held], arrow_type(kind)) for kind, (held, _) in values.items()}
    )
    letters = pa.table({"reason": [late_reason(5, 9)], "raw": raw_rows(rows)})
    (event,) = late_events(letters, "e", [(kind, kind) for kind in values])
    assert event.time == 5
    assert event.arguments == tuple(value for _, value in values.values())
