"""Unreadable resources that are stated anew: over the collections that they have, where what these
hold is known.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

from tidemill.catalog.entry import row_schema
from tidemill.catalog.store import Stored
from tidemill.errors import UnknownCollection, UsageError
from tidemill.runtime.problems import FieldPath, field_name
from tidemill.runtime.resources import Resource, TableSpec, UnreadableSpec
from tidemill.runtime.resources.words import names_secret
from tidemill.shard import Collections
from tidemill.shard.transitions import extend_schema


def stated_anew(known: Stored, resource: Resource) -> Stored | None:
    """An unreadable resource by a document that can be read, over the collections it has.

    None if nobody can tell what these hold, so that it begins anew. Raises: UsageError for a
    document that also changes what was not wrong.
    """
    spec = known.resource.spec
    assert isinstance(spec, UnreadableSpec)
    if not spec.fields or "before" in known.resolved:
        # A table is what was inserted: its rows stay, if they have the columns that are stated.
        if known.resource.kind != "Table":
            return None
        return replace(known, resource=resource, resolved={}, raw=None)
    assert known.raw is not None
    was = json.loads(known.raw["document"])["spec"]  # `spec.spec` lacks parts that are not shown
    stated = resource.to_document()["spec"]
    wrong = frozenset((*spec.fields, *_moved_headers(was, stated)))
    changed = sorted(_differing(was, stated, ("spec",), wrong))
    if changed:
        raise UsageError(
            f"{resource.place('spec')}: {resource}: {', '.join(changed)} cannot change while it exists, and what "
            f"cannot be read of it is {', '.join(spec.fields)}: change that alone, or delete it first: "
            f"tidemill delete {resource.kind.lower()} {resource.name}",
            reason="Immutable",
        )
    return replace(known, resource=resource, raw=None)


async def refuse_other_columns(table: Stored, collections: Collections) -> None:
    """Refuse columns that the rows of a table stated anew do not have, before anybody plans over
    them.

    A view that waits for the table would otherwise begin on these columns. Raises: UsageError.
    """
    assert isinstance(table.resource.spec, TableSpec)
    with suppress(UnknownCollection):  # its preparation was cut off before it had any
        state = await collections.newest(table.prefix)
        extend_schema(state, row_schema(table.resource.spec.columns))


_HTTP = ("spec", "sink", "http")
_HEADERS = ("headers", "secretHeaders")


def _moved_headers(was: Any, stated: Any) -> Iterator[str]:
    """The headers whose values were secrets, and the names of these in secretHeaders.

    A mistake elsewhere hides the former from what was found wrong.
    """
    try:
        before = [name for name in was["sink"]["http"]["headers"] if names_secret(name)]
    except (KeyError, TypeError):
        return
    yield from (field_name((*_HTTP, "headers", name)) for name in before)
    former = {name.lower() for name in before}
    for name in stated.get("sink", {}).get("http", {}).get("secretHeaders", {}):
        if name.lower() in former:
            yield field_name((*_HTTP, "secretHeaders", name))


def _differing(was: Any, now: Any, path: FieldPath, wrong: frozenset[str]) -> Iterator[str]:
    """The fields that are not what they were, apart from what had to be stated otherwise and
    retention.
    """
    if field_name(path) in wrong or path == ("spec", "retain"):
        return
    if path[-1] in _HEADERS and any(each.startswith(f"{field_name(path)}.") for each in wrong):
        was, now = was or {}, now or {}  # its only header may have moved
    if isinstance(was, dict) and isinstance(now, dict):
        inner = {name: field_name((*path, name)) for name in [*was, *now]}
        if len(path) > 1 and path[-1] not in _HEADERS and not wrong.isdisjoint(inner.values()):
            return  # such as a file of a password: what says it now has another name
        for name in inner:
            yield from _differing(was.get(name), now.get(name), (*path, name), wrong)
    elif was != now:
        yield field_name(path)
