"""Objects of the API as values, and what Tidemill knows of the resources that they declare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

from tidemill.errors import Unavailable, UsageError
from tidemill.kubernetes.api import Json
from tidemill.runtime.resources import API_VERSION, Resource, resource_from
from tidemill.time import Frontier

GROUP, VERSION = API_VERSION.split("/")
FINALIZER = "tidemill.dev/in-use"
PAUSE = "tidemill.dev/pause-reconciliation"
ABANDON = "tidemill.dev/abandon"
APPROVE, ABORT = "tidemill.dev/approve", "tidemill.dev/abort"
"""Annotations of a view: the number of its version that is to take over, or to be given up."""
READ_BY = "tidemill.dev/read-by"
"""Annotation of what others read: the namespaces whose objects may, with commas between; `*` is
all.
"""

READABLE = frozenset(("Source", "Table", "View", "Action", "Arrangement"))
"""Kinds whose names are collections, or begin the names of theirs."""
PLURALS: Mapping[str, str] = {
    "Source": "sources",
    "Table": "tables",
    "View": "views",
    "Action": "actions",
    "Arrangement": "arrangements",
    "Hold": "holds",
}
"""Every kind, in the order in which one can need another."""

Key: TypeAlias = tuple[str, str]
"""Kind and name: Tidemill has no namespaces."""


def collection_path(plural: str, namespace: str = "") -> str:
    """Path of the objects of one of our kinds, in one namespace or in all."""
    inside = f"/namespaces/{namespace}" if namespace else ""
    return f"/apis/{GROUP}/{VERSION}{inside}/{plural}"


@dataclass(frozen=True, slots=True)
class Declared:
    """One object, as the API server has it."""

    kind: str
    namespace: str
    name: str
    uid: str
    generation: int
    created: str
    spec: Json = field(hash=False)
    status: Json = field(default_factory=dict, hash=False)
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    annotations: Mapping[str, str] = field(default_factory=dict, hash=False)
    finalizers: tuple[str, ...] = ()
    deleting: bool = False

    @property
    def key(self) -> Key:
        """Kind and name of its resource in Tidemill."""
        return self.kind, self.name

    def may_be_read_by(self, namespace: str) -> bool:
        """Whether objects of another namespace may read what this one makes."""
        granted = {each.strip() for each in self.annotations.get(READ_BY, "").split(",")}
        return bool(granted & {namespace, "*"})

    @property
    def paused(self) -> bool:
        """Whether it is to be left alone."""
        return self.annotations.get(PAUSE) == "true"

    @property
    def held(self) -> bool:
        """Whether our finalizer keeps it."""
        return FINALIZER in self.finalizers

    def document(self) -> Json:
        """Document for Tidemill: annotations are the cluster's own business."""
        metadata: Json = {"name": self.name, "namespace": self.namespace}
        if self.labels:
            metadata["labels"] = dict(self.labels)
        return {
            "apiVersion": API_VERSION, "kind": self.kind, "metadata": metadata, "spec": self.spec,
        }  # fmt: skip

    def resource(self) -> Resource | str:
        """The resource, or why it is none."""
        try:
            return resource_from(self.document(), f"{self.namespace}/{self.name}")
        except UsageError as error:
            return str(error)


class _Metadata(msgspec.Struct, frozen=True):
    name: str
    namespace: str
    uid: str
    generation: int = 1
    creationTimestamp: str = ""  # noqa: N815  as the API writes it
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    finalizers: tuple[str, ...] | None = None


def declared(kind: str, document: Json) -> Declared:
    """The object of a document of the API.

    IMPORTANT: an object that is left out counts as deleted, and its resource with it. So a document
    that is none is an error of the whole answer. Raises: Unavailable.
    """
    try:
        metadata = msgspec.convert(document["metadata"], _Metadata)
        deleting = "deletionTimestamp" in document["metadata"]
    except (msgspec.ValidationError, KeyError, TypeError) as error:
        raise Unavailable(f"a {kind} of the API server is no object: {error}") from error
    status = document.get("status")
    return Declared(
        kind=kind,
        namespace=metadata.namespace,
        name=metadata.name,
        uid=metadata.uid,
        generation=metadata.generation,
        created=metadata.creationTimestamp,
        spec=document.get("spec", {}),
        status=status if isinstance(status, dict) else {},
        labels=metadata.labels or {},
        annotations=metadata.annotations or {},
        finalizers=metadata.finalizers or (),
        deleting=deleting,
    )


def version_of(document: Json) -> str:
    """The version of the API server at which an object is so. Raises: Unavailable."""
    try:
        return str(document["metadata"]["resourceVersion"])
    except (KeyError, TypeError) as error:
        raise Unavailable("an object of the API server has no version") from error


@dataclass(frozen=True, slots=True)
class KnownResource:
    """A resource in Tidemill and how it does.

    `resource` of None: it cannot be read by this version.
    """

    resource: Resource | None
    ready: bool
    reason: str = ""
    message: str = ""
    since: Frontier | None = None
    upper: Frontier | None = None
    lag_ms: int | None = None
    holders: int | None = None
    oldest_holder: str = ""
    batches: int | None = None
    bytes: int | None = None
    records_per_s: float | None = None
    records_behind: int | None = None
    left_ms: int | None = None
    engine: str = ""
    """Of a view: local or spark, with a word and a sentence why."""
    engine_cause: str = ""
    engine_reason: str = ""
    waiting: int | None = None
    """The number of a version that waits to be approved or aborted."""

    @property
    def namespace(self) -> str | None:
        """Whose it is: None if it was applied without a cluster."""
        return None if self.resource is None else self.resource.namespace
