"""Requests that no handler has to look at: a name that is missing, a time to wait that is none."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from tidemill.time import UsageError

NAME_CHARS_MAX = 500
TEXT_CHARS_MAX = 64_000


def validate(request: Any) -> None:
    """Raises: UsageError naming the field. Fields that a request leaves unset on purpose may be so."""
    for field in request.DESCRIPTOR.fields:
        rule = _RULES.get(field.name)
        if rule is None or (field.has_presence and not request.HasField(field.name)):
            continue
        says = rule(getattr(request, field.name))
        if says is not None:
            raise UsageError(
                f"the request's {field.name} {says}", reason="request", field=field.name
            )


def _name(value: str) -> str | None:
    if not value:
        return "is missing"
    return "is too long" if len(value) > NAME_CHARS_MAX else None


def _text(value: str) -> str | None:
    if not value.strip():
        return "is missing"
    return "is too long" if len(value) > TEXT_CHARS_MAX else None


def _wait(value: float) -> str | None:
    return None if math.isfinite(value) and value >= 0 else "is no time to wait: 0 or more seconds"


def _lease(value: int) -> str | None:
    return None if value > 0 else "is no time: more than 0 milliseconds"


def _capability(value: Any) -> str | None:
    if not value.id:
        return "has no id"
    return None if value.collection else "names no collection"


_RULES: Mapping[str, Callable[[Any], str | None]] = {
    "collection": _name,
    "kind": _name,
    "name": _name,
    "table": _name,
    "view": _name,
    "source": _name,
    "goal": _text,
    "record": _text,
    "wait_s": _wait,
    "lease_ms": _lease,
    "capability": _capability,
}
