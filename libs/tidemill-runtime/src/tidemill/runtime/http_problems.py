"""Refusals over HTTP as problems (RFC 9457): what is wrong, and what the caller does next."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import replace

from tidemill.errors import (
    AlreadyUsed,
    BeforeSince,
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
from tidemill.runtime.http_messages import HttpReply
from tidemill.time import Antichain

PROBLEM = "application/problem+json"
RETRY_AFTER_S = 1
TEXT_CHARS_MAX = 32_000
"""Characters of a text in a problem."""

STATUSES: tuple[tuple[type[TidemillError], int], ...] = (
    (UnknownCollection, 404),
    (UnknownCapability, 404),
    (AlreadyUsed, 409),
    (Unauthenticated, 401),
    (Denied, 403),
    (UsageError, 400),
    (BeforeSince, 410),
    (NotYet, 425),
    (DeadlinePassed, 504),
    (Fenced, 409),
    (CutOff, 503),
    (Exhausted, 429),
    (Unavailable, 503),
    (Indeterminate, 500),
    (Corrupt, 500),
    (TidemillError, 500),
)
"""The first line whose class fits."""

FORM_STATUSES: Mapping[int, str] = {
    400: "The request is none of HTTP, or its body breaks off.",
    403: "The host or the page is foreign.",
    404: "There is no such route.",
    405: "The route does not take this method; the header `Allow` has those that it takes.",
    406: "The answer has none of the types that `Accept` names.",
    408: "The body takes longer than `limits.http_body_s`.",
    413: "The body is larger than `limits.http_body_bytes`.",
    415: "The body is encoded, or of a type that is not taken.",
    417: "The header `Expect` wants anything but `100-continue`.",
    503: "More connections than `limits.http_connections` are open.",
}
"""Statuses of requests that no route is asked about, and when each is given."""

ADVICE: Mapping[type[TidemillError], str] = {
    UnknownCollection: "GET /v1/collections and GET /v1/resources list what there is.",
    BeforeSince: "Choose a later instant; keep more history next time with `retain` or a Hold.",
    NotYet: "Choose an earlier instant, leave it out for the latest, or wait with `wait_s`.",
}
"""The next act by the parameters and routes of HTTP; the command line says it by its own."""

_ASK_LATER = frozenset({429, 503})


def problem(
    status: int, kind: str, title: str, detail: str, more: Mapping[str, object] | None = None
) -> HttpReply:
    """A reply that says what is wrong; `more` are further members, values as JSON can hold them.

    No cache keeps it.
    """
    members = {
        "type": f"urn:tidemill:{kind}",
        "title": title,
        "status": status,
        "detail": detail[:TEXT_CHARS_MAX],
    }
    found = HttpReply.json({**(more or {}), **members}, status)
    return replace(found, content_type=PROBLEM, headers={"Cache-Control": "no-store"})


def form_problem(status: int, detail: str) -> HttpReply:
    """The refusal of a request by its form: one of `FORM_STATUSES`."""
    return problem(
        status, f"http:{status}", FORM_STATUSES.get(status, "The request is refused."), detail
    )


def refusal(error: TidemillError) -> HttpReply:
    """The error as a problem: its class as the type, its next step as the title, its details."""
    kind, status = next((k, code) for k, code in STATUSES if isinstance(error, k))
    title = (inspect.getdoc(kind) or "").partition("\n")[0]
    more = {name: _plain(value) for name, value in error.details.items()}
    if advice := ADVICE.get(kind):
        more["advice"] = advice
    if callable(render := getattr(error, "render", None)):
        more["rendered"] = str(render())[:TEXT_CHARS_MAX]
    found = problem(status, f"error:{_dashed(kind)}", title, error.message, more)
    headers = dict(found.headers)
    if status in _ASK_LATER:
        headers["Retry-After"] = str(RETRY_AFTER_S)
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return replace(found, headers=headers)


def fault(error: BaseException) -> HttpReply:
    """The problem of an error that nobody foresaw; what it says stays in the log."""
    return refusal(TidemillError(f"the server failed: {type(error).__name__}"))


def _dashed(kind: type) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", kind.__name__).lower()


def _plain(value: object) -> object:
    """`value` as JSON; a frontier as its times, anything foreign as its text."""
    if isinstance(value, bool | int | float | str | None):
        return value
    if isinstance(value, Antichain):
        return [int(time) for time in value.elements]
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(element) for element in value]
    if isinstance(value, dict):
        return {str(key): _plain(element) for key, element in value.items()}
    return str(value)
