"""Documents as resources: within their limits, beside the event loop, and every mistake at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from tidemill.arrangement.looks import look
from tidemill.errors import UsageError
from tidemill.rpc.messages import ResourceDocument
from tidemill.rpc.turns import in_turn
from tidemill.runtime.resources import Resource, ViewSpec, load_resources

MAKERS = ("Source", "Table", "View", "Action", "Arrangement")
"""Kinds whose resources make collections, which have their names."""

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
