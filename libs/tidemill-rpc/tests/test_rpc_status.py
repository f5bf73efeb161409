"""Every error crosses the wire with its class and its fields."""

from __future__ import annotations

import grpc
import pytest

from tidemill.rpc.status import CutOff, DeadlinePassed, from_status, to_status
from tidemill.time import (
    AlreadyUsed,
    BeforeSince,
    CapabilityExpired,
    Corrupt,
    Fenced,
    Indeterminate,
    NotYet,
    TidemillError,
    Unavailable,
    UnknownCapability,
    UnknownCollection,
    UsageError,
    frontier,
)

CODES = [
    (UsageError, "INVALID_ARGUMENT"),
    (UnknownCollection, "NOT_FOUND"),
    (UnknownCapability, "NOT_FOUND"),
    (AlreadyUsed, "ALREADY_EXISTS"),
    (BeforeSince, "OUT_OF_RANGE"),
    (NotYet, "FAILED_PRECONDITION"),
    (DeadlinePassed, "DEADLINE_EXCEEDED"),
    (Fenced, "ABORTED"),
    (CapabilityExpired, "ABORTED"),
    (CutOff, "RESOURCE_EXHAUSTED"),
    (Unavailable, "UNAVAILABLE"),
    (Indeterminate, "UNKNOWN"),
    (Corrupt, "DATA_LOSS"),
    (TidemillError, "INTERNAL"),
]


@pytest.mark.parametrize(("kind", "code"), CODES)
def test_an_error_comes_back_as_its_class_with_its_fields(
    kind: type[TidemillError], code: str
) -> None:
    error = kind(
        "refused: because", requested=5, since=frontier(7), upper=frontier(), holder=None,
        columns=("a", "b"), nested={"x": 1.5}, flag=True,
    )  # fmt: skip
    status, details = to_status(error)
    assert status.name == code
    back = from_status(status, "", details)
    assert type(back) is kind
    assert back.message == error.message
    assert back.details == error.details
    assert back.upper != back.since


def test_waiting_in_vain_is_a_passed_deadline_on_the_wire_and_not_yet_to_the_caller() -> None:
    status, details = to_status(NotYet("not definite", upper=frontier(3)), waited=True)
    assert status is grpc.StatusCode.DEADLINE_EXCEEDED
    back = from_status(status, "", details)
    assert type(back) is NotYet
    assert back.upper == frontier(3)


def test_a_subclass_that_the_wire_does_not_know_arrives_as_its_parent_with_its_rendering() -> None:
    class ProgramWrong(UsageError):
        def render(self) -> str:
            return "view.tidelog:1: late(f) ^^^"

    back = from_status(*_with_text(to_status(ProgramWrong("E1", reason="E1"))))
    assert type(back) is UsageError
    assert back.details == {"reason": "E1", "rendered": "view.tidelog:1: late(f) ^^^"}


def test_a_field_too_long_for_metadata_is_left_out_and_the_error_still_arrives() -> None:
    back = from_status(*_with_text(to_status(UsageError("x" * 90_000, long="y" * 90_000, n=1))))
    assert back.details == {"n": 1}
    assert len(back.message) < 90_000


@pytest.mark.parametrize(
    ("code", "text", "writes", "kind"),
    [
        (grpc.StatusCode.UNAVAILABLE, "failed to connect to all addresses", False, Unavailable),
        (grpc.StatusCode.UNAVAILABLE, "failed to connect to all addresses", True, Unavailable),
        (grpc.StatusCode.UNAVAILABLE, "Socket closed", False, Unavailable),
        (grpc.StatusCode.UNAVAILABLE, "Socket closed", True, Indeterminate),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "", False, DeadlinePassed),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "", True, Indeterminate),
        (grpc.StatusCode.CANCELLED, "", False, Unavailable),
        (grpc.StatusCode.CANCELLED, "", True, Indeterminate),
        (grpc.StatusCode.UNIMPLEMENTED, "", False, UsageError),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "", False, UsageError),
        (grpc.StatusCode.INTERNAL, "bug", False, TidemillError),
    ],
)
def test_a_bare_status_means_what_the_transport_knows(
    code: grpc.StatusCode, text: str, writes: bool, kind: type[TidemillError]
) -> None:
    assert type(from_status(code, text, None, writes=writes)) is kind


def _with_text(status: tuple[grpc.StatusCode, bytes]) -> tuple[grpc.StatusCode, str, bytes]:
    return status[0], "", status[1]
