"""Texts with placeholders for what an effect is about, `${record}` and the like.

A template has no loops and no conditions: filling one in costs its length and those of its values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping

NAMES = (
    "key", "event", "phase", "action", "record", "arguments", "instant", "time", "link", "proof",
    "count",
)  # fmt: skip
"""Names of placeholders, beside `arg.NAME` for an argument by its name."""

ARGUMENT = "arg."

TEMPLATE = rf"([^$]|\$\$|\$\{{({'|'.join(NAMES)}|arg\.[\p{{L}}\p{{N}}_.-]+)\}})*"
"""The form of a template, as a pattern of RE2."""

PROOF = "proof"

_PLACEHOLDER = re.compile(rf"\$(?:(\$)|\{{({'|'.join(NAMES)}|arg\.[\w.-]+)\}}|)")


def is_template(text: str) -> bool:
    """Whether each `$` begins a placeholder, or is doubled."""
    return all(match[1] or match[2] for match in _PLACEHOLDER.finditer(text))


def placeholders_in(text: str) -> list[str]:
    """The placeholders of a template, as they are written."""
    return [match[2] for match in _PLACEHOLDER.finditer(text) if match[2]]


def fill(text: str, values: Mapping[str, str], shown: Callable[[str], str] = str) -> str:
    """The template with each placeholder replaced by `shown` of its value; `$$` is a dollar sign.

    Raises: KeyError for a placeholder without a value. Cost: O(length of the result).
    """
    return _PLACEHOLDER.sub(lambda match: "$" if match[1] else shown(values[match[2]]), text)


def within_json(value: str) -> str:
    """A value as it stands within a text of JSON, without the quotes around it."""
    return json.dumps(value, ensure_ascii=False)[1:-1]
