"""Validation before handlers: missing names, negative or infinite waits, excessive numbers.

Two bytes of a message may stand for an object of a hundred: repeated fields are counted before they
are looked at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tidemill.errors import UsageError

NAME_CHARS_MAX = 500
TEXT_CHARS_MAX = 64_000
RECORD_CHARS_MAX = 1 << 20
DOCUMENT_CHARS_MAX = 1 << 26
"""Documents and programs have limits of their own, which are settings: no message is longer than
this.
"""

ITEMS_MAX = 100_000
_ITEMS_MAX = {
    "names": 1_000, "documents": 10_000, "columns": 10_000, "where": 1_000, "key": 1_000, "times": 1_000,
    "rows": 1_000_000, "ranges": 1_000_000,
}  # fmt: skip
"""Elements that a request may have in each of these lists."""

_CHARS_MAX = {
    "goal": TEXT_CHARS_MAX, "record": RECORD_CHARS_MAX, "names": TEXT_CHARS_MAX, "value_json": TEXT_CHARS_MAX,
    "program": DOCUMENT_CHARS_MAX, "text": DOCUMENT_CHARS_MAX, "file": 8_000,
}  # fmt: skip
"""Characters of texts that are no names."""


def validate(request: Any) -> None:
    """Raises: UsageError naming the field.

    Fields that a request leaves unset on purpose may be so.
    """
    _refuse_many(request)
    for field in request.DESCRIPTOR.fields:
        rule = _RULES.get(field.name)
        if rule is None or (field.has_presence and not request.HasField(field.name)):
            continue
        says = rule(getattr(request, field.name))
        if says is not None:
            raise UsageError(
                f"the request's {field.name} {says}", reason="request", field=field.name
            )


def _refuse_many(message: Any) -> None:
    """Raises: UsageError for a field with too many items, or too long a text, also of what is in
    the message.
    """
    for field, value in message.ListFields():
        texts = [value] if field.type == field.TYPE_STRING else ()
        if field.is_repeated:
            most = _ITEMS_MAX.get(field.name, ITEMS_MAX)
            if len(value) > most:
                raise UsageError(
                    f"the request's {field.name} are {len(value):,}, more than {most:,}: ask for fewer at a time",
                    reason="request", field=field.name,
                )  # fmt: skip
            texts = value if texts or _is_map(field) else ()
            for each in _messages_in(field, value):
                _refuse_many(each)
        elif field.type == field.TYPE_MESSAGE:
            _refuse_many(value)
        longest = max(map(len, texts), default=0)
        if longest > _CHARS_MAX.get(field.name, NAME_CHARS_MAX):
            raise UsageError(
                f"the request's {field.name} is too long: it has {longest:,} characters",
                reason="request", field=field.name,
            )  # fmt: skip


def _is_map(field: Any) -> bool:
    """Whether a repeated field is a map; the keys of ours are texts."""
    inner = field.message_type
    return inner is not None and bool(inner.GetOptions().map_entry)


def _messages_in(field: Any, value: Any) -> Iterable[Any]:
    """The messages of a repeated field that may hold a text, or many of something."""
    inner = field.message_type
    if _is_map(field):
        held = inner.fields_by_name["value"].message_type
        return () if held is None else value.values()
    numbers = inner is None or all(
        each.type not in (each.TYPE_STRING, each.TYPE_MESSAGE) and not each.is_repeated
        for each in inner.fields
    )
    return () if numbers else value


def _name(value: str) -> str | None:
    if not value:
        return "is missing"
    return "is too long" if len(value) > NAME_CHARS_MAX else None


def _text(value: str) -> str | None:
    if not value.strip():
        return "is missing"
    return "is too long" if len(value) > TEXT_CHARS_MAX else None


def _record(value: str) -> str | None:
    if not value.strip():
        return "is missing"
    return "is too long" if len(value) > RECORD_CHARS_MAX else None


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
    "record": _record,
    "wait_s": _wait,
    "lease_ms": _lease,
    "capability": _capability,
}
