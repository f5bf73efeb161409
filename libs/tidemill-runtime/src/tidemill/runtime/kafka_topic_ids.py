"""The identity of a topic: a name may come to mean another topic, an identity never does.

aiokafka speaks older versions of the request for metadata, which do not carry it. Brokers carry it
from version 2.8 on.
"""

from __future__ import annotations

from io import BytesIO
from typing import Any
from uuid import UUID

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import IncompatibleBrokerVersion, UnknownTopicOrPartitionError, for_code
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Schema,
    TaggedFields,
)

VERSION = 10
METADATA = 3


class _Uuid:
    """Sixteen bytes."""

    @classmethod
    def encode(cls, value: bytes) -> bytes:
        return value

    @classmethod
    def decode(cls, data: BytesIO) -> bytes:
        return data.read(16)


_TEXT = CompactString("utf-8")
_NUMBERS = CompactArray(Int32)


class _Described(Response):  # type: ignore[misc]  # aiokafka ships no types
    API_KEY = METADATA
    API_VERSION = VERSION
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "brokers",
            CompactArray(
                ("node_id", Int32), ("host", _TEXT), ("port", Int32), ("rack", _TEXT),
                ("tags", TaggedFields),
            ),
        ),
        ("cluster_id", _TEXT),
        ("controller_id", Int32),
        (
            "topics",
            CompactArray(
                ("error_code", Int16), ("topic", _TEXT), ("topic_id", _Uuid),
                ("is_internal", Boolean),
                (
                    "partitions",
                    CompactArray(
                        ("error_code", Int16), ("partition", Int32), ("leader", Int32),
                        ("leader_epoch", Int32), ("replicas", _NUMBERS), ("isr", _NUMBERS),
                        ("offline_replicas", _NUMBERS), ("tags", TaggedFields),
                    ),
                ),
                ("authorized_operations", Int32), ("tags", TaggedFields),
            ),
        ),
        ("cluster_authorized_operations", Int32),
        ("tags", TaggedFields),
    )  # fmt: skip


class _Describe(RequestStruct):  # type: ignore[misc]  # aiokafka ships no types
    FLEXIBLE_VERSION = True
    API_KEY = METADATA
    API_VERSION = VERSION
    RESPONSE_TYPE = _Described
    SCHEMA = Schema(
        ("topics", CompactArray(("topic_id", _Uuid), ("topic", _TEXT), ("tags", TaggedFields))),
        ("allow_auto_topic_creation", Boolean),
        ("include_cluster_authorized_operations", Boolean),
        ("include_topic_authorized_operations", Boolean),
        ("tags", TaggedFields),
    )


class _DescribeTopic(Request[_Describe]):  # type: ignore[misc]  # aiokafka ships no types
    API_KEY = METADATA

    def __init__(self, topic: str) -> None:
        self._topic = topic

    def build(self, request_struct_class: Any) -> Any:  # aiokafka ships no types
        return request_struct_class([(bytes(16), self._topic, {})], False, False, False, {})


async def topic_id(admin: AIOKafkaAdminClient, topic: str) -> str | None:
    """The identity of a topic; None if the broker is too old to have one.

    Raises: what aiokafka raises, UnknownTopicOrPartitionError for a topic that is not there.
    """
    try:
        answer = await admin._send_request(_DescribeTopic(topic))
    except (IncompatibleBrokerVersion, NotImplementedError):
        return None
    for found in answer.to_object()["topics"]:
        if found["topic"] == topic:
            if found["error_code"]:
                raise for_code(found["error_code"])(topic)
            return str(UUID(bytes=found["topic_id"]))
    raise UnknownTopicOrPartitionError(topic)
