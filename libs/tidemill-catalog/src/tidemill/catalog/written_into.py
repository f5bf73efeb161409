"""Collections of users that a view writes on into: which, and by which capability."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pyarrow as pa

from tidemill.errors import UsageError
from tidemill.runtime.resources import Resource
from tidemill.shard import Holder

WRITTEN_INTO = "tidemill.dev/written-into"
"""The annotation of a view that was given write capabilities: by predicate the collection. It
grants nothing: the right to write is the capability that the view took over."""


def written_into(resource: Resource) -> dict[str, str]:
    """By predicate the collection that an output is written on into; nothing for a foreign
    annotation.
    """
    try:
        told = json.loads(resource.annotations.get(WRITTEN_INTO, "{}"))
    except (ValueError, RecursionError):
        return {}
    if not isinstance(told, Mapping):
        return {}
    return {str(predicate): str(collection) for predicate, collection in told.items()}


def writer_of(prefix: str) -> str:
    """The owner of the capabilities that a view has taken over, whichever version of it is read."""
    return f"written:{prefix}"


def owns(holder: Holder, owner: str) -> bool:
    """Whether it is the capability that an owner has for good."""
    return holder.named and holder.owner == owner


def refuse_unlike(predicate: str, output: pa.Schema, collection: str, into: pa.Schema) -> None:
    """Raises: UsageError unless a collection has the columns of an output, in their order,
    whatever their names.
    """
    if output.types != into.types:
        shown = [", ".join(map(str, each.types)) or "none" for each in (output, into)]
        raise UsageError(
            f"{predicate} has columns of the types {shown[0]}, {collection} of {shown[1]}: create it alike",
            reason="Unlike",
        )
