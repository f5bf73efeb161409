"""Spans of time as people write them: 250ms, 1s, 10m, 24h, 7d, and sums such as 1h30m."""

from __future__ import annotations

import re

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_PART = re.compile(r"([0-9]{1,15})(ms|s|m|h|d)")
MS_MAX = 1 << 53
"""Longer than any instant is far: what is added to one stays within 64 bits."""
DURATION_RULE = "a duration is written like 250ms, 1s, 10m, 24h, 7d or 1h30m"


class Milliseconds(int):
    """A span of time in milliseconds; an int that knows how it was written in a file."""

    def __str__(self) -> str:
        return format_duration(self)


def parse_duration(text: str) -> Milliseconds | None:
    """The span that `text` names; None if it names none."""
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    sizes = [_UNITS_MS[unit] for _, unit in parts]
    if sizes != sorted(set(sizes), reverse=True):
        return None
    total = sum(int(number) * _UNITS_MS[unit] for number, unit in parts)
    return Milliseconds(total) if total <= MS_MAX else None


def format_duration(ms: int) -> str:
    """`ms` in the largest units that are exact: 5400000 is 1h30m."""
    if ms == 0:
        return "0s"
    text = ""
    left = int(ms)
    for unit, size in sorted(_UNITS_MS.items(), key=lambda item: -item[1]):
        count, left = divmod(left, size)
        text += f"{count}{unit}" if count else ""
    return text
