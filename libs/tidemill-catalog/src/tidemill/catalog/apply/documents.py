"""Documents as resources: within their limits, beside the event loop, and every mistake at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from tidemill.arrangement.looks import let_go, look
from tidemill.errors import TidemillError, UsageError
from tidemill.rpc.messages import ResourceDocument
from tidemill.rpc.turns import in_turn
from tidemill.runtime.resources import Resource, ViewSpec, load_resources

T = TypeVar("T")

MAKERS = ("Source", "Table", "View", "Action", "Arrangement")
"""Kinds whose resources make collections, which have their names."""

FREED_A_LOOK = 20
"""Resources that are freed between two looks: each is some hundred objects."""

FILE_CHARS_MAX = 4_096
"""Each mistake in a document repeats the name of its file."""


@dataclass(frozen=True, slots=True)
class DocumentLimits:
    """Limits in bytes: of all documents of one apply, and of the program of one view."""

    document_bytes: int = 1 << 20
    program_bytes: int = 64 << 10


def read_documents(documents: Sequence[ResourceDocument]) -> list[Resource]:
    """All resources of all documents, or every mistake in them at once; looks as it reads."""
    found: list[Resource] = []
    messages: list[str] = []
    for document in documents:
        try:
            found += load_resources(document.text, document.file, look)
        except UsageError as error:
            messages.append(str(error))
    messages += [
        f"{resource.place('metadata', 'name')}: {told_twice(resource, earlier)}"
        for resource, earlier in doubled(found)
    ]
    if messages:
        let_go(found, FREED_A_LOOK)  # the error holds this frame
        raise UsageError("\n".join(messages), reason="resources")
    return found


async def read_bounded(
    documents: Sequence[ResourceDocument], limits: DocumentLimits
) -> list[Resource]:
    """The resources of documents, read on a thread beside the event loop, as `read_documents` reads
    them.

    Raises: UsageError, also for documents beyond `limits`.
    """
    size = sum(len(document.text.encode()) for document in documents)
    if any(len(document.file) > FILE_CHARS_MAX for document in documents):
        raise UsageError(
            f"apply refused: a document has the name of a file of more than {FILE_CHARS_MAX} characters",
            reason="request",
        )
    if size > limits.document_bytes:
        raise UsageError(
            f"apply refused: the documents have {size:,} bytes, more than {limits.document_bytes:,} "
            "(limits.document_bytes); apply them a few at a time",
            reason="limits",
        )
    resources = await in_turn(partial(read_documents, documents))
    for resource in resources:
        spec = resource.spec
        length = len(spec.program.encode()) if isinstance(spec, ViewSpec) else 0
        if length > limits.program_bytes:
            raise UsageError(
                f"{resource.place('spec', 'program')}: {resource}: the program has {length:,} bytes, "
                f"more than {limits.program_bytes:,} (limits.program_bytes); put facts into a table, "
                "or make two views of it",
                reason="limits",
            )
    return resources


async def with_resources(
    documents: Sequence[ResourceDocument], limits: DocumentLimits,
    work: Callable[[list[Resource]], Awaitable[T]],
) -> T:  # fmt: skip
    """The result of `work` on the resources of documents, which are freed beside the event loop
    once nothing but this has them.

    Raises: as `read_bounded` and `work`. An error that was foreseen holds no frames of the work.
    """
    read = await read_bounded(documents, limits)
    try:
        return await work(read)
    except (TidemillError, asyncio.CancelledError) as error:
        _forget_frames(error)
        raise
    finally:
        if len(read) > FREED_A_LOOK:
            await in_turn(partial(let_go, read, FREED_A_LOOK))


def _forget_frames(error: BaseException | None) -> None:
    """Have an error, and those before it, hold no frames, nor the resources that these hold."""
    while error is not None:
        error.__traceback__ = None
        error = error.__context__


def doubled(resources: Sequence[Resource]) -> list[tuple[Resource, Resource]]:
    """Each resource whose name was taken before it, with the one that took it.

    A resource that makes collections gives them its name, so of all kinds that do one may have it.
    """
    first: dict[tuple[str, str], Resource] = {}
    pairs = ((each, first.setdefault((_space(each.kind), each.name), each)) for each in resources)
    return [(resource, earlier) for resource, earlier in pairs if earlier is not resource]


def _space(kind: str) -> str:
    """Among which kinds a name is given once."""
    return "collections" if kind in MAKERS else kind


def told_twice(resource: Resource, earlier: Resource) -> str:
    """The refusal of a resource whose name another resource of these files has."""
    if resource.kind == earlier.kind:
        return f"metadata.name: {resource} is there already, at {earlier.position}"
    return f"metadata.name: {taken(resource, earlier)}, at {earlier.position}"


def taken(resource: Resource, by: Resource) -> str:
    """Says that the name of a resource's collections is that of another one's."""
    return f"{resource}: its collections would be named as those of {by}"
