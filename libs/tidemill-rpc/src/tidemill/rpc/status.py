"""Errors to gRPC status and back: the one table, read in both directions.

The class of an error travels as the reason of a `google.rpc.ErrorInfo`, its fields as the metadata.
So the client raises the same class with the same fields. A status without that detail comes from
the transport, and its meaning depends on whether the call writes.
"""

from __future__ import annotations

import json

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]  # ships no py.typed

from tidemill.errors import (
    AlreadyUsed,
    BeforeSince,
    CapabilityExpired,
    Corrupt,
    CutOff,
    DeadlinePassed,
    Denied,
    Exhausted,
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
from tidemill.rpc.messages import Json
from tidemill.time import Antichain, frontier

DOMAIN = "tidemill.dev"
DETAILS_KEY = "grpc-status-details-bin"
MESSAGE_CHARS_MAX = 32_000
FIELD_CHARS_MAX = 32_000
FIELDS_CHARS_MAX = 128_000
METADATA_BYTES_MAX = 1 << 20
"""Bytes of metadata that both ends accept: a program error of many mistakes arrives whole."""


_TOO_LARGE = "message larger than max"
"""Text of gRPC about a message beyond a limit; its other refusals are no fault of the caller."""


STATUSES: tuple[tuple[type[TidemillError], str, grpc.StatusCode], ...] = (
    (AlreadyUsed, "ALREADY_USED", grpc.StatusCode.ALREADY_EXISTS),
    (UnknownCollection, "UNKNOWN_COLLECTION", grpc.StatusCode.NOT_FOUND),
    (UnknownCapability, "UNKNOWN_CAPABILITY", grpc.StatusCode.NOT_FOUND),
    (Unauthenticated, "UNAUTHENTICATED", grpc.StatusCode.UNAUTHENTICATED),
    (Denied, "DENIED", grpc.StatusCode.PERMISSION_DENIED),
    (UsageError, "USAGE_ERROR", grpc.StatusCode.INVALID_ARGUMENT),
    (BeforeSince, "BEFORE_SINCE", grpc.StatusCode.OUT_OF_RANGE),
    (NotYet, "NOT_YET", grpc.StatusCode.FAILED_PRECONDITION),
    (DeadlinePassed, "DEADLINE_PASSED", grpc.StatusCode.DEADLINE_EXCEEDED),
    (CapabilityExpired, "CAPABILITY_EXPIRED", grpc.StatusCode.ABORTED),
    (Fenced, "FENCED", grpc.StatusCode.ABORTED),
    (CutOff, "CUT_OFF", grpc.StatusCode.RESOURCE_EXHAUSTED),
    (Exhausted, "EXHAUSTED", grpc.StatusCode.RESOURCE_EXHAUSTED),
    (Unavailable, "UNAVAILABLE", grpc.StatusCode.UNAVAILABLE),
    (Indeterminate, "INDETERMINATE", grpc.StatusCode.UNKNOWN),
    (Corrupt, "CORRUPT", grpc.StatusCode.DATA_LOSS),
    (TidemillError, "INTERNAL", grpc.StatusCode.INTERNAL),
)
"""Subclasses before their parents: the first row that fits is the one."""

NOT_OFFERED = "call"
"""Reason of a call that a server does not know."""

UNREACHABLE = "unreachable"
"""Reason of an Unavailable without a connection: none was made, or it broke."""

_CLASSES = {reason: error for error, reason, _ in STATUSES}


def code_of(error: TidemillError, *, waited: bool = False) -> tuple[str, grpc.StatusCode]:
    """The reason and the code of an error.

    `waited` says that the caller gave time to wait: NotYet is then DEADLINE_EXCEEDED.
    """
    reason, code = next((r, c) for kind, r, c in STATUSES if isinstance(error, kind))
    if waited and isinstance(error, NotYet):
        code = grpc.StatusCode.DEADLINE_EXCEEDED
    return reason, code


def to_status(error: TidemillError, *, waited: bool = False) -> tuple[grpc.StatusCode, bytes]:
    """The code, and the serialized `google.rpc.Status` that rebuilds the error.

    With DEADLINE_EXCEEDED for `waited` it is still NotYet to the client. A message or a field too
    long for metadata is cut or left out.
    """
    reason, code = code_of(error, waited=waited)
    info = error_details_pb2.ErrorInfo(
        reason=reason, domain=DOMAIN, metadata=_metadata({**error.details, **_rendering(error)})
    )
    message = sayable(error.message[:MESSAGE_CHARS_MAX])
    status = status_pb2.Status(code=code.value[0], message=message)
    status.details.add().Pack(info)
    return code, status.SerializeToString()


def sayable(text: str) -> str:
    """The text as a message of protobuf may hold it: halves of characters are written out."""
    return text.encode(errors="backslashreplace").decode()


def from_status(
    code: grpc.StatusCode, text: str, details: bytes | None, *, writes: bool = False
) -> TidemillError:
    """The error that the server raised, class and fields; else what the bare code means.

    `writes` says whether the call may have changed something before its connection broke.
    """
    raised = None if details is None else _raised(details)
    return _from_transport(code, text, writes) if raised is None else raised


def _raised(details: bytes) -> TidemillError | None:
    """The error that the details of a status hold; None if they are not ours, or nobody can read
    them.
    """
    try:
        status = status_pb2.Status.FromString(details)
        info = error_details_pb2.ErrorInfo()
        for detail in status.details:
            if detail.Unpack(info) and info.domain == DOMAIN and info.reason in _CLASSES:
                fields = {name: _rich(json.loads(text)) for name, text in info.metadata.items()}
                return _CLASSES[info.reason](status.message, **fields)
    except (DecodeError, ValueError, RecursionError):
        return None
    return None


def _from_transport(code: grpc.StatusCode, text: str, writes: bool) -> TidemillError:
    match code:
        case grpc.StatusCode.UNAVAILABLE:
            # NB: "Connection reset by peer" is of a connection that was there: the call may have
            # arrived.
            if writes and "failed to connect" not in text.lower():
                return Indeterminate(f"the connection broke during the call: {text}")
            cause = text.rpartition(": ")[2]
            return Unavailable(f"the server is not reachable: {cause}", reason=UNREACHABLE)
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            if writes:
                return Indeterminate("the deadline passed before the answer came")
            return DeadlinePassed("the deadline passed before the answer came")
        case grpc.StatusCode.CANCELLED:
            return away("the server ended the call before its answer", writes=writes)
        case grpc.StatusCode.RESOURCE_EXHAUSTED if _TOO_LARGE in text:
            return UsageError(f"the message is too large: {text}", reason="size")
        case grpc.StatusCode.UNIMPLEMENTED:
            return UsageError(f"the server does not offer this call: {text}", reason=NOT_OFFERED)
        case grpc.StatusCode.INVALID_ARGUMENT:
            return UsageError(text)
        case grpc.StatusCode.UNAUTHENTICATED:
            return Unauthenticated(text)
        case grpc.StatusCode.PERMISSION_DENIED:
            return Denied(text)
        case _:
            # Our servers say with details what failed in them: this is a connection, or something
            # between.
            return away(
                f"the connection broke during the call ({code.name}): {text}", writes=writes
            )


def away(message: str, *, writes: bool) -> TidemillError:
    """Error of a call without an answer: Unavailable if it reads, Indeterminate if it `writes`."""
    return Indeterminate(message) if writes else Unavailable(message)


def _rendering(error: TidemillError) -> dict[str, object]:
    """The fields of an error that people read: a program's mistakes, underlined; empty without
    any.
    """
    render = getattr(error, "render", None)
    return {"rendered": str(render())[: FIELD_CHARS_MAX // 2]} if callable(render) else {}


def _metadata(fields: dict[str, object]) -> dict[str, str]:
    """Each field as JSON, those left out that are too long."""
    kept: dict[str, str] = {}
    room = FIELDS_CHARS_MAX
    for name, value in fields.items():
        text = json.dumps(_plain(value))
        if len(text) <= min(room, FIELD_CHARS_MAX):
            kept[name] = text
            room -= len(text)
    return kept


def _plain(value: object) -> Json:
    """`value` as JSON; a frontier under a key of its own, anything foreign as its text."""
    if isinstance(value, bool | int | float | str | None):
        return value
    if isinstance(value, Antichain):
        return {"frontier": [int(time) for time in value.elements]}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(element) for element in value]
    if isinstance(value, dict):
        return {"object": {str(key): _plain(element) for key, element in value.items()}}
    return str(value)


def _rich(value: Json) -> object:
    """The value that `_plain` encoded, except that sequences come back as tuples."""
    if isinstance(value, list):
        return tuple(_rich(element) for element in value)
    if isinstance(value, dict):
        times = value.get("frontier")
        if isinstance(times, list):
            return frontier(*(time for time in times if isinstance(time, int)))
        inner = value.get("object")
        return {k: _rich(v) for k, v in inner.items()} if isinstance(inner, dict) else value
    return value
