"""Errors of brokers are told apart by what the caller does next."""

from __future__ import annotations

import pytest
from aiokafka.errors import (
    GroupLoadInProgressError,
    InvalidReplicationFactorError,
    InvalidTopicError,
    KafkaConnectionError,
    MessageSizeTooLargeError,
    NodeNotReadyError,
    NotEnoughReplicasError,
    NotLeaderForPartitionError,
    PolicyViolationError,
    RequestTimedOutError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)

from tidemill.errors import Indeterminate, Unavailable, UsageError
from tidemill.runtime.kafka_errors import translate

MAY_PASS = (
    GroupLoadInProgressError,
    InvalidReplicationFactorError,
    KafkaConnectionError,
    NodeNotReadyError,
    NotEnoughReplicasError,
    NotLeaderForPartitionError,
    RequestTimedOutError,
)
FOR_PEOPLE = (
    InvalidTopicError,
    MessageSizeTooLargeError,
    PolicyViolationError,
    TopicAuthorizationFailedError,
)


@pytest.mark.parametrize("error", MAY_PASS)
def test_a1_a_failure_that_brokers_get_over_stalls_nobody(error: type[Exception]) -> None:
    """A topic with three replicas cannot be made while one of three brokers is away."""
    assert type(translate("it", error())) is Unavailable
    assert type(translate("it", error(), writing=True)) is Indeterminate


@pytest.mark.parametrize("error", FOR_PEOPLE)
def test_what_a_broker_refuses_for_good_is_a_wrong_use(error: type[Exception]) -> None:
    assert type(translate("it", error(), writing=True)) is UsageError


def test_the_reason_of_the_broker_is_told() -> None:
    told = translate("making t", UnknownTopicOrPartitionError("no t"))
    assert str(told).startswith("making t failed: ")
    assert "no t" in str(told)


def test_a_broker_that_does_not_answer_is_told_by_its_address() -> None:
    """The text is that of the client, with what is to be checked of TLS behind it."""
    family = "<AddressFamily.AF_INET: 2>"
    places = f"[('127.0.0.1', 1, {family}), ('b.example', 9092, {family})]"
    error = KafkaConnectionError(f"Unable to bootstrap from {places} (check tls)")
    says = translate("looking up topic t", error).message
    assert says == (
        "looking up topic t failed: no broker answers at 127.0.0.1:1, b.example:9092; is it up, and "
        "is its address right? (check tls)"
    )
    assert "AddressFamily" not in says
