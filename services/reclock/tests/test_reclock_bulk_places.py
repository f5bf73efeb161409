"""Connections of a bulk job: to brokers that the service may reach, by all their names and
addresses.
"""

from __future__ import annotations

import asyncio
import socket
from secrets import token_hex

import msgspec
import pytest

from tidemill.errors import UsageError
from tidemill.runtime.kafka_access import KafkaPlace
from tidemill.runtime.log import Entry
from tidemill.runtime.log_kafka import KafkaLog
from tidemill.runtime.places import Egress
from tidemill.runtime.places.egress import host_rule
from tidemill_reclock.bulk_records import read_checked


def told(topic: str, bootstrap: str, *rules: str) -> KafkaPlace:
    """A place of a source as a job gets it: encoded by the service, and decoded by the driver."""
    egress = Egress(tuple(map(host_rule, rules)))
    place = KafkaPlace(topic, bootstrap, egress=egress)
    return msgspec.msgpack.decode(msgspec.msgpack.encode(place), type=KafkaPlace)


def read(place: KafkaPlace) -> int:
    """The records that a task of the job reads."""
    return sum(batch.num_rows for batch in read_checked(place, False, 0, 0, 3))


def test_a1_a_job_does_not_connect_to_brokers_that_nothing_names() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        listening.setblocking(False)
        bootstrap = f"127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(UsageError, match=r"places\.egress does not name it"):
            read(told("t", bootstrap, "kafka.example.org"))
        with pytest.raises(BlockingIOError):
            listening.accept()


@pytest.mark.server
def test_a1_a_job_goes_to_no_broker_that_another_one_names(kafka_bootstrap: str) -> None:
    """The broker is asked as localhost, and says of itself that it is 127.0.0.1."""
    topic, port = f"places-{token_hex(4)}", kafka_bootstrap.rpartition(":")[2]

    async def fill() -> None:
        log = KafkaLog(kafka_bootstrap)
        await log.create_topic(topic, 1)
        await log.append(topic, [Entry(None, b"x", 0)] * 3)
        await log.close()

    asyncio.run(fill())
    with pytest.raises(UsageError, match=rf"127\.0\.0\.1:{port} is refused: places\.egress"):
        read(told(topic, f"localhost:{port}", "localhost"))
    assert read(told(topic, f"localhost:{port}", "localhost", "127.0.0.0/8")) == 3
