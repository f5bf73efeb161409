"""Places where bytes become cells with types, changes, deliveries, filters, claims, own logs."""

from __future__ import annotations

import json
import math
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from decimal import Decimal
from functools import cache, partial
from itertools import product
from pathlib import Path

import msgspec
import pyarrow as pa

from tidemill.catalog.records.debezium import change_reader
from tidemill.datalog.state import decode_fields, encode_fields
from tidemill.datalog.sums import Wide
from tidemill.errors import Corrupt, UsageError
from tidemill.rpc.codecs_storage import condition_in, condition_out
from tidemill.rpc.messages import Comparison, Condition
from tidemill.rpc.status import from_status, to_status
from tidemill.runtime.formats import BadRow, Column, CsvFormat, JsonFormat, RowDecoder
from tidemill.runtime.log import Entry, LogRecord
from tidemill.runtime.log_frames import encode_frame
from tidemill.runtime.log_segments import FrameCursor, described, segment_path, topic_directory
from tidemill.runtime.resources.decoding import RecordShape
from tidemill.runtime.resources.specs import (
    DebeziumSpec,
    EnvelopeSpec,
    HttpOrigin,
    SignatureSpec,
    VerifySpec,
)
from tidemill.shard.claims.register import value_of
from tidemill.shard.claims.tables import Member, Members, Owner, Owners
from tidemill.shard.framing import REGISTER, framed
from tidemill.shard.ports import Version
from tidemill.testkit.fuzzing.running import Target
from tidemill.time import frontier
from tidemill.time.instants import read_at
from tidemill_query.conditions import filter_of, fixed_by
from tidemill_query.web.reading import conditions_of
from tidemill_query.web.webhooks import challenge_of, delivery_id, rows_of_json

TYPED = [
    Column("at", "timestamp", True), Column("day", "date", True), Column("span", "duration", True),
    Column("cost", "decimal(9,2)", True), Column("raw", "bytes", True), Column("id", "uuid", True),
    Column("more", "json", True),
]  # fmt: skip
TYPED_ROW = (
    b'{"at": "2024-02-29T12:00:00.5Z", "day": "2024-02-29", "span": "PT1.5S", "cost": -12.50, '
    b'"raw": "AQI=", "id": "00000000-0000-0000-0000-00000000000a", "more": {"x": [1, 2.5, null]}}'
)
TYPED_LINE = (
    b"2024-02-29T12:00:00Z,2024-02-29,PT1H,12.5,AQI=,00000000-0000-0000-0000-00000000000a,[1]"
)
STATE = encode_fields(
    (("p", 1), 2.5, None, frozenset({True, "ä"}), math.inf, Wide(2**70), Decimal("1.5"))
)
MEMBER = Member("compute-0", "10.0.0.7:7473", 4_000, 3, ("View/w",))
OWNER = Owner("a", 2)
USAGE = (UsageError,)


def _rows(decoder: RowDecoder, data: bytes) -> None:
    rows, letters = decoder.decode([0], [1], [data])
    assert rows.num_rows + letters.num_rows == 1
    rows.validate(full=True)
    letters.validate(full=True)


def _changes() -> Target:
    columns = (Column("id", "int"), Column("plane", "text", True))
    envelope = EnvelopeSpec(debezium=DebeziumSpec(key=("id",)))
    read = change_reader(RecordShape(columns, columns, JsonFormat(), envelope=envelope), None)
    row = {"id": 7, "plane": "ä"}
    seeds = (
        json.dumps({"op": "u", "before": row, "after": {**row, "plane": None}}).encode(),
        json.dumps({"payload": {"op": "d", "before": row, "after": None}}).encode(),
        json.dumps({"op": "c", "after": row}).encode(),
    )
    refused = (BadRow, UsageError)
    return Target("changes", seeds, lambda data: read(LogRecord(0, 1, None, data, 5)), refused)


def _deliveries() -> Iterator[Target]:
    signed = VerifySpec(stripe=SignatureSpec(secret="s"))
    array = HttpOrigin(array=True, headers={"event": "X-Event"})

    def delivered(origin: HttpOrigin, data: bytes) -> None:
        sent = {"x-event": data[:40].decode("latin-1")}
        challenge_of(data)
        for row in rows_of_json(data, origin, sent, 100):
            assert b"\n" not in row
        delivery_id(origin, sent, data)

    one = b'{"id": "evt_1", "type": "paid", "data": {"n": [1, "\\u00e4\\n"]}}'
    asked = b'{"type": "url_verification", "challenge": "c"}'
    yield Target("deliveries", (one, asked), partial(delivered, HttpOrigin(verify=signed)), USAGE)
    yield Target("delivered-arrays", (b"[" + one + b"]",), partial(delivered, array), USAGE)


def _filters() -> Iterator[Target]:
    table = pa.table({"n": [1, None], "t": ["a", "ä"], "f": [0.5, None], "b": [True, None]})

    def by(conditions: list[Condition]) -> None:
        fixed_by(conditions, table.schema)
        met = filter_of(conditions, table.schema)
        assert met is not None
        table.filter(met)

    def by_message(data: bytes) -> None:
        text = data.decode(errors="replace")
        for column, comparison in product(table.column_names, Comparison):
            message = condition_out(Condition(column, comparison, None))
            message.value_json = text
            with suppress(UsageError):
                by([condition_in(message)])

    def by_text(data: bytes) -> None:
        by(conditions_of(data.decode(errors="replace").split("\n")))

    yield Target("conditions", (b"1", b'"a"', b"-2.5e3", b"null", b"true"), by_message, (), 0.2)
    yield Target("filters", (b'n>=1\nt=="a"', b"f!=0.5\nb==true\nn==null"), by_text, USAGE)


def _claims() -> Iterator[Target]:
    for table in (Members({"a": MEMBER}), Owners(3, {"View/v": OWNER})):
        kind = type(table)

        def read(data: bytes, kind: type[Members | Owners] = kind) -> None:
            value_of(Version(1, framed(REGISTER, data)), "claims", kind)

        yield Target(
            f"claims-{kind.__name__.lower()}", (msgspec.msgpack.encode(table),), read, (Corrupt,)
        )


@cache
def _scratch() -> Path:
    """A folder of this process alone; children write into it one after the other."""
    return Path(tempfile.mkdtemp(prefix="fuzz-log-"))


def _segment(data: bytes) -> None:
    partition = _scratch() / "0"
    partition.mkdir(exist_ok=True)
    segment_path(partition, 0).write_bytes(data)
    cursor = FrameCursor(partition, 0)
    try:
        while cursor.next_offset < 3 and (frames := cursor.next_frames(3)):
            for frame in frames:
                frame.to_records(0)
    finally:
        cursor.close()


def _topic(data: bytes) -> None:
    folder = topic_directory(_scratch(), "t")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "topic.json").write_bytes(data)
    described(_scratch(), "t")


def named_targets() -> tuple[Target, ...]:
    """All of them; each begins with inputs that it takes."""
    told = UsageError("refused: because", message=5, self=True, since=frontier(7))
    code, details = to_status(told)
    frame = encode_frame(
        [Entry(b"k", b"v", 0, 5), Entry(None, b"v" * 40), Entry(b"l", None)], 0, 0, 7
    )
    return (
        Target("typed-rows", (TYPED_ROW,), partial(_rows, RowDecoder(TYPED, JsonFormat()))),
        Target("typed-lines", (TYPED_LINE,), partial(_rows, RowDecoder(TYPED, CsvFormat()))),
        _changes(),
        *_deliveries(),
        *_filters(),
        Target(
            "instants", (b"2024-02-29T12:00:00.5+01:00", b"now-1h30m", b"1700000000000"),
            lambda data: read_at(data.decode(errors="replace"), lambda: 1_700_000_000_000), USAGE,
        ),
        Target("statuses", (details,), lambda data: from_status(code, "said", data)),
        *_claims(),
        Target(
            "state-fields", (STATE.encode(),),
            lambda data: decode_fields(data.decode(errors="replace")), (Corrupt,),
        ),
        Target("segments", (frame, frame[:60]), _segment, (Corrupt,)),
        Target("topics", (b'{"partitions": 3, "id": "a"}',), _topic, (Corrupt,)),
    )  # fmt: skip
