"""The records of all workloads, from fixed seeds, and their way into Kafka.

Every system reads the same bytes.

Event time begins at `START`; 20,000 records of a topic share a second, in order up to 200 ms.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator, Mapping
from random import Random
from typing import Any

import fastavro
import pyarrow as pa
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

START = 1_700_000_000_000
PER_MS = 20
"""Records of a topic that share a millisecond of event time."""
KEYS_SHARE = 5
"""Changes of a key of the keyed source, on average."""
Record = tuple[str, bytes | None, bytes]
"""Topic, key, value."""

WIDE = {
    "number": ("long", 3), "device": ("string", 9), "site": ("string", 9), "level": ("long", 3),
    "flow": ("long", 3), "heat": ("double", 1), "pressure": ("double", 1), "open": ("boolean", 8),
    "note": ("string", 9), "at": ("long", 3),
}  # fmt: skip
"""The ten fields of a flat record: their types in Avro and in Protobuf."""
SCHEMA = {
    "type": "record", "name": "Wide", "namespace": "bench",
    "fields": [{"name": name, "type": kind} for name, (kind, _) in WIDE.items()],
}  # fmt: skip
SCHEMA_NUMBER = 1


def event_end(n: int) -> int:
    """An instant that is not after the last of `n` records."""
    return START + n // PER_MS


def readings(n: int) -> Iterator[Record]:
    """Levels of 1,000 tanks."""
    draw = Random(7).randrange
    for i in range(n):
        at = START + i // PER_MS + draw(200)
        value = b'{"tank":"T%03d","level":%d,"flow":%d,"at":%d}'
        yield "readings", None, value % (draw(1000), draw(10_000), draw(1000), at)


def orders(n: int) -> Iterator[Record]:
    """Orders and payments, two thirds of which meet an order that is at most ten seconds old."""
    draw = Random(7).randrange
    for i in range(n):
        at = START + i // PER_MS + draw(200)
        yield "orders", None, b'{"id":"O%09d","amount":%d,"at":%d}' % (i, draw(10_000), at)
        due = max(i - draw(150_000), 0) if i % 3 else n + i
        yield "payments", None, b'{"id":"P%09d","order":"O%09d","at":%d}' % (i, due, at)


def keys_of(n: int) -> int:
    """Number of keys that `n` changes of the keyed source are of."""
    return max(1, n // KEYS_SHARE)


def stock(n: int) -> Iterator[Record]:
    """Changes of the rows of keys; one in fifty takes a row away."""
    draw, keys = Random(7).randrange, keys_of(n)
    for i in range(n):
        key, value = b"A%09d" % draw(keys), b'{"pieces":%d,"place":%d}' % (draw(10_000), i)
        yield "stock", key, b"" if draw(50) == 0 else value


def stock_rows(n: int) -> dict[str, list[Any]]:
    """The rows that are there after all changes."""
    rows: dict[str, tuple[int, int]] = {}
    for _, key, value in stock(n):
        assert key is not None
        if value:
            row = json.loads(value)
            rows[key.decode()] = row["pieces"], row["place"]
        else:
            rows.pop(key.decode(), None)
    return {
        "article": list(rows),
        "pieces": [pieces for pieces, _ in rows.values()],
        "place": [place for _, place in rows.values()],
    }


def unpaid_rows(n: int, after_ms: int, kept_ms: int) -> dict[str, list[Any]]:
    """Orders that no payment of then answers so long after them; a payment is kept for a while."""
    due: dict[str, int] = {}
    paid: dict[str, list[int]] = {}
    for topic, _, value in orders(n):
        row = json.loads(value)
        if topic == "orders":
            due[row["id"]] = row["at"] + after_ms
        else:
            paid.setdefault(row["order"], []).append(row["at"])
    open_ = {
        order: at
        for order, at in due.items()
        if not any(each <= at < each + kept_ms for each in paid.get(order, ()))
    }
    return {"order": list(open_), "time": list(open_.values())}


def extreme_rows(n: int, window_ms: int) -> dict[str, list[Any]]:
    """The greatest level, the least flow and the sum of all levels of a tank, by window."""
    held: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for _, _, value in readings(n):
        row = json.loads(value)
        window = row["at"] // window_ms * window_ms
        held.setdefault((row["tank"], window), []).append((row["level"], row["flow"]))
    return {
        "tank": [tank for tank, _ in held],
        "time": [window for _, window in held],
        "max": [max(level for level, _ in rows) for rows in held.values()],
        "min": [min(flow for _, flow in rows) for rows in held.values()],
        "sum": [math.fsum(level / 10.0 for level, _ in rows) for rows in held.values()],
    }


def wide_values(n: int) -> Iterator[dict[str, Any]]:
    """Flat records of ten fields."""
    draw = Random(7).randrange
    for i in range(n):
        yield {
            "number": i, "device": f"D{draw(100_000):06d}", "site": f"S{draw(100):03d}",
            "level": draw(10_000), "flow": draw(1000), "heat": draw(10_000) / 8,
            "pressure": draw(10_000) / 16, "open": draw(2) == 1, "note": f"note {draw(1000)}",
            "at": START + i // PER_MS,
        }  # fmt: skip


def wide_rows(n: int) -> dict[str, list[Any]]:
    """The same as columns."""
    found: dict[str, list[Any]] = {name: [] for name in WIDE}
    for value in wide_values(n):
        for name, cell in value.items():
            found[name].append(cell)
    return found


def avro(n: int) -> Iterator[Record]:
    """Flat records, as Confluent's serializers write them."""
    schema = fastavro.parse_schema(SCHEMA)
    head = b"\0" + SCHEMA_NUMBER.to_bytes(4, "big")
    for value in wide_values(n):
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, schema, value)
        yield "avro", None, head + stream.getvalue()


def descriptors() -> descriptor_pb2.FileDescriptorSet:
    """bench.Wide, as protoc describes it."""
    file = descriptor_pb2.FileDescriptorProto(name="wide.proto", package="bench", syntax="proto3")
    message = file.message_type.add(name="Wide")
    for number, (name, (_, kind)) in enumerate(WIDE.items(), 1):
        message.field.add(name=name, number=number, type=kind, label=1)  # type: ignore[arg-type]  # an enum's number
    return descriptor_pb2.FileDescriptorSet(file=[file])


def protobuf(n: int) -> Iterator[Record]:
    """Flat records as messages."""
    pool = descriptor_pool.DescriptorPool()
    pool.Add(descriptors().file[0])
    message = message_factory.GetMessageClass(pool.FindMessageTypeByName("bench.Wide"))
    for value in wide_values(n):
        yield "protobuf", None, message(**value).SerializeToString()


MAKERS = {
    "readings": readings, "orders": orders, "stock": stock, "avro": avro, "protobuf": protobuf,
}  # fmt: skip
TOPICS: Mapping[str, tuple[str, ...]] = {
    **{name: (name,) for name in MAKERS}, "orders": ("orders", "payments"),
}  # fmt: skip


async def create_topics(bootstrap: str, topics: tuple[str, ...], partitions: int) -> None:
    """Make topics, each with so many partitions."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    await admin.create_topics([NewTopic(topic, partitions, 1) for topic in topics])
    await admin.close()


async def send(bootstrap: str, records: str, n: int, partitions: int, prefix: str = "") -> None:
    """Write all records of a name; a key has one partition, others take turns.

    `prefix` comes before the names of the topics.
    """
    topics = tuple(prefix + topic for topic in TOPICS[records])
    await create_topics(bootstrap, topics, partitions)
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, max_batch_size=1 << 20)
    await producer.start()
    batches: dict[tuple[str, int], Any] = {}
    count = dict.fromkeys(TOPICS[records], 0)
    for topic, key, value in MAKERS[records](n):
        turn = count[topic] if key is None else int(key[1:])
        place = topic, turn % partitions
        count[topic] += 1
        batch = batches.get(place) or batches.setdefault(place, producer.create_batch())
        told = value or None  # a record without a value takes its key's row away
        if batch.append(key=key, value=told, timestamp=None) is None:
            await producer.send_batch(batch, prefix + topic, partition=place[1])
            batches[place] = producer.create_batch()
            batches[place].append(key=key, value=told, timestamp=None)
    for (topic, partition), batch in batches.items():
        await producer.send_batch(batch, prefix + topic, partition=partition)
    await producer.flush()
    await producer.stop()


def table(columns: Mapping[str, list[Any]]) -> pa.Table:
    """Columns as a table."""
    return pa.table(dict(columns))
