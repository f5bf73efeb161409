"""Errors of aiokafka, translated to Tidemill's: the only place that knows their classes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager

from aiokafka.errors import (
    AuthenticationFailedError,
    ClusterAuthorizationFailedError,
    ConsumerStoppedError,
    CorruptRecordException,
    GroupAuthorizationFailedError,
    InvalidConfigurationError,
    InvalidPartitionsError,
    InvalidTimestampError,
    InvalidTopicError,
    KafkaError,
    MessageSizeTooLargeError,
    OffsetOutOfRangeError,
    PolicyViolationError,
    ProducerClosed,
    RecordListTooLargeError,
    SaslAuthenticationFailed,
    TopicAuthorizationFailedError,
    UnsupportedVersionError,
)

from tidemill.errors import (
    Corrupt,
    Fenced,
    Indeterminate,
    TidemillError,
    Unavailable,
    UsageError,
)

_REFUSED = (
    InvalidConfigurationError,
    InvalidPartitionsError,
    InvalidTimestampError,
    InvalidTopicError,
    MessageSizeTooLargeError,
    PolicyViolationError,
    RecordListTooLargeError,
    UnsupportedVersionError,
)
_FORBIDDEN = (
    AuthenticationFailedError,
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    SaslAuthenticationFailed,
    TopicAuthorizationFailedError,
)

_NO_BROKER = re.compile(r"(?:KafkaConnectionError: )?Unable to bootstrap from \[(.*?\))\]")
"""Words of the client that finds none of the brokers that it was given."""

_ADDRESS = re.compile(r"\('([^']+)', ([0-9]+)")

FOREIGN = (KafkaError, ConsumerStoppedError, TimeoutError, asyncio.TimeoutError, OSError)
"""Everything that a call of aiokafka may raise when the broker, the network or the call is to
blame.
"""


def translate(tried: str, error: BaseException, *, writing: bool = False) -> TidemillError:
    """The error for the caller: `tried` failed because of `error`.

    With `writing` a failure that does not say whether the broker acted is Indeterminate, otherwise
    it is Unavailable: a read can always be repeated. So is a topic that asks for more replicas than
    there are brokers: one of them may be away.
    """
    words = f"{tried} failed: {_said(error)}"
    if isinstance(error, OffsetOutOfRangeError):
        return UsageError(words, reason="offset-out-of-range")
    if isinstance(error, _REFUSED):
        return UsageError(words, reason="refused-by-broker")
    if isinstance(error, _FORBIDDEN):
        return UsageError(words, reason="not-allowed")
    if isinstance(error, CorruptRecordException):
        return Corrupt(words)
    if isinstance(error, ConsumerStoppedError | ProducerClosed):
        return Fenced(words)
    if writing:
        return Indeterminate(words)
    return Unavailable(words)


def _said(error: BaseException) -> str:
    """The text of an error; where no broker answers, with addresses in place of sockets."""
    return _NO_BROKER.sub(_no_broker, str(error) or type(error).__name__)


def _no_broker(found: re.Match[str]) -> str:
    places = ", ".join(f"{host}:{port}" for host, port in _ADDRESS.findall(found[1]))
    return f"no broker answers at {places}; is it up, and is its address right?"


@contextmanager
def translated(tried: str) -> Iterator[None]:
    """Translate what the body raises; for everything but appends."""
    try:
        yield
    except FOREIGN as error:
        raise translate(tried, error) from error
