"""Resources whose row of the catalog cannot be read, and what is known of them.

A row may have been written by a version whose fields no longer exist, or by one that is newer, or
be damaged. It is one resource that does not run; nothing else depends on that it can be read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tidemill.errors import UsageError
from tidemill.runtime.addresses import bare_url
from tidemill.runtime.breaking import told
from tidemill.runtime.problems import Problem
from tidemill.runtime.resources import Resource, UnreadableSpec
from tidemill.runtime.resources.words import names_secret

REMEDY = "apply it anew as this version writes it, or delete it"


SHOWN_DEEP = 50
"""Depth of an unreadable spec beyond which its parts are not shown."""


class Unreadable(Exception):
    """The stored row of a resource cannot be read.

    The text names no secret, and says how to state the resource anew.
    """


def resource_of(row: Mapping[str, Any], error: Exception) -> Resource:
    """The readable part of a resource whose row could not be read because of `error`."""
    found: Any = error.details.get("problems") if isinstance(error, UsageError) else None
    problems: Sequence[Problem] = found or ()
    says = f"{told(error)}: the row of the catalog cannot be read"
    for each in problems:
        says += f"; {each.field}{': ' if each.field else ''}{each.says}"
        says += f", {each.hint}" if each.hint else ""
    spec = _spec_of(row)
    fields = tuple(each.field for each in problems)
    if not spec or not all(field.startswith("spec.") for field in fields):
        fields = ()
    unreadable = UnreadableSpec(spec=spec, why=f"{says}; {REMEDY}", fields=fields)
    return Resource(str(row["kind"]), str(row["name"]), unreadable)


def _spec_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """The spec that a row holds, as it may be shown; empty if it holds none."""
    try:
        document = json.loads(row["document"])
    except (TypeError, ValueError, RecursionError):
        return {}
    spec = document.get("spec") if isinstance(document, dict) else None
    return _shown(spec) if isinstance(spec, dict) else {}


def _shown(value: Any, depth: int = 0) -> Any:
    """A value of JSON whose addresses and headers tell no secret: older versions let them stand
    there.
    """
    if isinstance(value, dict | list) and depth == SHOWN_DEEP:
        return "…"
    if isinstance(value, dict):
        return {
            _text(name): _headers(each) if name == "headers" else _shown(each, depth + 1)
            for name, each in value.items()
        }
    if isinstance(value, list):
        return [_shown(each, depth + 1) for each in value]
    return _text(value) if isinstance(value, str) else value


def _headers(value: Any) -> Any:
    """Headers without the values that are secrets by the names of these."""
    if not isinstance(value, dict):
        return "…"
    return {
        _text(name): _text(each) if isinstance(each, str) and not names_secret(name) else "…"
        for name, each in value.items()
    }


def _text(text: str) -> str:
    sound = text.encode(errors="replace").decode()
    return bare_url(sound) if "://" in sound.split("\n")[0] else sound
