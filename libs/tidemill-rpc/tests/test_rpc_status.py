"""Every error crosses the wire with its class and its fields."""

from __future__ import annotations

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]  # ships no py.typed

from tidemill.errors import (
    AlreadyUsed,
    BeforeSince,
    CapabilityExpired,
    Corrupt,
    CutOff,
    DeadlinePassed,
    Denied,
    Fenced,
    Indeterminate,
    NotYet,
    TidemillError,
    Unauthenticated,
    Unavailable,
    UnknownCapability,
    UnknownCollection,
    UsageError,
)
from tidemill.rpc.status import DOMAIN, from_status, to_status
from tidemill.time import frontier

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


def test_a_field_may_be_called_as_an_argument_is() -> None:
    """A client has the error of its server, whatever the server names its fields."""
    back = from_status(*_with_text(to_status(UsageError("refused", message=5, self=True))))
    assert (type(back), back.message) == (UsageError, "refused")
    assert back.details == {"message": 5, "self": True}


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
        (
            grpc.StatusCode.UNAVAILABLE,
            "Stream removed (recvmsg:Connection reset by peer (104))",
            True,
            Indeterminate,
        ),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "", False, DeadlinePassed),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "", True, Indeterminate),
        (grpc.StatusCode.CANCELLED, "", False, Unavailable),
        (grpc.StatusCode.CANCELLED, "", True, Indeterminate),
        (grpc.StatusCode.UNIMPLEMENTED, "", False, UsageError),
        (grpc.StatusCode.UNIMPLEMENTED, "", True, UsageError),
        (grpc.StatusCode.INVALID_ARGUMENT, "", True, UsageError),
        (grpc.StatusCode.UNAUTHENTICATED, "", False, Unauthenticated),
        (grpc.StatusCode.PERMISSION_DENIED, "", True, Denied),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "Received message larger than max", False, UsageError),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "Sent message larger than max", True, UsageError),
        *(
            (code, "Internal error from Core", writes, Indeterminate if writes else Unavailable)
            for code in (
                grpc.StatusCode.INTERNAL,
                grpc.StatusCode.UNKNOWN,
                grpc.StatusCode.CANCELLED,
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                grpc.StatusCode.ABORTED,
                grpc.StatusCode.OUT_OF_RANGE,
                grpc.StatusCode.NOT_FOUND,
                grpc.StatusCode.ALREADY_EXISTS,
                grpc.StatusCode.FAILED_PRECONDITION,
                grpc.StatusCode.DATA_LOSS,
            )
            for writes in (False, True)
        ),
    ],
)
def test_a_bare_status_means_what_the_transport_knows(
    code: grpc.StatusCode, text: str, writes: bool, kind: type[TidemillError]
) -> None:
    assert type(from_status(code, text, None, writes=writes)) is kind


@pytest.mark.parametrize("code", list(grpc.StatusCode))
def test_no_bare_status_is_an_error_that_says_nothing_of_what_to_do(code: grpc.StatusCode) -> None:
    for writes in (False, True):
        assert type(from_status(code, "", None, writes=writes)) is not TidemillError


@pytest.mark.parametrize("code", list(grpc.StatusCode))
@pytest.mark.parametrize("kind", [kind for kind, _ in CODES])
def test_details_of_ours_count_whatever_the_code_is(
    kind: type[TidemillError], code: grpc.StatusCode
) -> None:
    _, details = to_status(kind("refused"))
    assert type(from_status(code, "", details)) is kind
    assert type(from_status(code, "", details, writes=True)) is kind


@pytest.mark.parametrize(
    "details", [b"\xff", b"", status_pb2.Status(code=3).SerializeToString(), b"\x08" * 9]
)
def test_details_that_are_not_ours_are_as_none(details: bytes) -> None:
    assert type(from_status(grpc.StatusCode.INTERNAL, "x", details)) is Unavailable
    assert type(from_status(grpc.StatusCode.INTERNAL, "x", details, writes=True)) is Indeterminate


def test_fields_that_nobody_can_read_are_as_no_details() -> None:
    info = error_details_pb2.ErrorInfo(
        reason="CORRUPT", domain=DOMAIN, metadata={"collection": "no JSON"}
    )
    status = status_pb2.Status(code=15)
    status.details.add().Pack(info)
    found = from_status(grpc.StatusCode.DATA_LOSS, "x", status.SerializeToString())
    assert type(found) is Unavailable


def _with_text(status: tuple[grpc.StatusCode, bytes]) -> tuple[grpc.StatusCode, str, bytes]:
    return status[0], "", status[1]
