"""The twin of keyed sources: the rows at each time, by walking the whole history from its
beginning.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Happened(NamedTuple):
    """One change as it lies in the source; rows are tuples, and the key is the first cell."""

    time: int
    partition: int
    offset: int
    op: str
    before: tuple[object, ...] | None
    after: tuple[object, ...] | None
    key: object


def rows_at(history: Sequence[Happened], at: int) -> dict[object, tuple[object, ...]]:
    """Key → row at a time."""
    return _walk(history, at)[0]


def broken(history: Sequence[Happened]) -> set[tuple[int, int]]:
    """The places of the changes that do not follow from what was there before them."""
    last = max((each.time for each in history), default=0)
    return _walk(history, last)[1]


def _walk(
    history: Sequence[Happened], at: int
) -> tuple[dict[object, tuple[object, ...]], set[tuple[int, int]]]:
    rows: dict[object, tuple[object, ...]] = {}
    refused = set()
    for each in sorted(history, key=lambda e: (e.time, e.partition, e.offset)):
        if each.time > at:
            break
        here = rows.get(each.key)
        has_happened = here == each.after
        follows = {
            "set": True,
            "read": True,
            "create": here is None,
            "update": here is not None and each.before in (None, here),
            "delete": here is not None and each.before in (None, here),
        }[each.op]
        if has_happened:
            continue
        if not follows:
            refused.add((each.partition, each.offset))
        elif each.after is None:
            del rows[each.key]
        else:
            rows[each.key] = each.after
    return rows, refused
