"""Pages of long lists: entries in the order of their keys, behind the last key of the page before.

A page states no place in a store. Entries that come or go between two pages are in a page or not,
and all others are in one of them, once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

from tidemill.errors import UsageError

T = TypeVar("T")

LIMIT_MAX = (1 << 32) - 1
"""Entries of a page; a message has no larger number."""


@dataclass(frozen=True, slots=True)
class Page:
    """At most `limit` entries whose keys are behind `after`; with `may` those whose keys it lets
    through.
    """

    limit: int
    after: str = ""
    may: Callable[[str], bool] | None = None


class Listed(list[T]):
    """Entries of a list; `next` is the `after` of the next page, None if nothing follows."""

    next: str | None = None


def page_of(limit: int | None, after: str | None) -> Page | None:
    """The page that a caller asks for; None is the whole list. Raises: UsageError."""
    if limit is None:
        if after:
            raise UsageError(f"list refused: a page behind {after!r} needs a limit", reason="limit")
        return None
    if not 1 <= limit <= LIMIT_MAX:
        raise UsageError(
            f"list refused: a page has 1 to {LIMIT_MAX:,} entries, not {limit}", reason="limit"
        )
    return Page(limit, after or "")


def cut(entries: Iterable[T], page: Page | None, key: Callable[[T], str]) -> list[T]:
    """The entries of a page; all of them, as they are, without one."""
    if page is None:
        return list(entries)
    may = page.may or (lambda _: True)
    behind = (each for each in entries if key(each) > page.after and may(key(each)))
    return sorted(behind, key=key)[: page.limit]


async def list_page(
    ask: Callable[[Page | None], Awaitable[Iterable[T]]], page: Page | None, key: Callable[[T], str]
) -> Listed[T]:
    """The entries that `ask` has for a page, and whether any follow. Cost: one more entry."""
    if page is None:
        return Listed(await ask(None))
    found = Listed(await ask(replace(page, limit=page.limit + 1)))
    if len(found) > page.limit:
        del found[page.limit :]
        found.next = key(found[-1])
    return found
