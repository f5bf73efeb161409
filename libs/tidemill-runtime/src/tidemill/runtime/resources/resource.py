"""A resource: one document that fits, as a typed value, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tidemill.runtime.documents import Document
from tidemill.runtime.durations import Milliseconds, format_duration, parse_duration
from tidemill.runtime.problems import FieldPath, Position, refuse
from tidemill.runtime.resources.specs import (
    ActionSpec,
    AnySpec,
    ArrangementSpec,
    DeclaredSpec,
    HoldSpec,
    SourceSpec,
    TableSpec,
    UnreadableSpec,
    ViewSpec,
)
from tidemill.runtime.resources.validation import find_problems
from tidemill.runtime.resources.words import parse_instant

API_VERSION = "tidemill.dev/v1alpha1"
REASON = "resources"
_FORMER_ENGINES = frozenset({"dataflow", "incremental", "scratch"})

_SPECS: dict[str, type[DeclaredSpec]] = {
    "Source": SourceSpec,
    "Table": TableSpec,
    "View": ViewSpec,
    "Action": ActionSpec,
    "Arrangement": ArrangementSpec,
    "Hold": HoldSpec,
}


@dataclass(frozen=True, slots=True)
class Resource:
    """Declaration of a user; equal if kind, name, labels and spec are, wherever it was written."""

    kind: str
    name: str
    spec: AnySpec
    namespace: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    annotations: Mapping[str, str] = field(default_factory=dict, hash=False)
    position: Position = field(default=Position("?"), compare=False)
    places: Mapping[FieldPath, Position] = field(default_factory=dict, compare=False, repr=False)
    blocks: Mapping[FieldPath, Position] = field(default_factory=dict, compare=False, repr=False)

    def place(self, *path: str | int) -> Position:
        """Position of the value at `path`, or of the nearest thing around it that is written."""
        while path and path not in self.places:
            path = path[:-1]
        return self.places.get(path, self.position)

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}"

    def to_document(self) -> dict[str, Any]:
        """The document that gives this resource back; fields with their default value are left
        out.
        """
        if isinstance(self.spec, UnreadableSpec):
            spec = self.spec.spec
        else:
            spec = msgspec.json.decode(msgspec.json.encode(self.spec, enc_hook=_encode))
        if isinstance(self.spec, SourceSpec | TableSpec | ViewSpec) and self.spec.retain is None:
            spec["retain"] = "all"
        metadata: dict[str, Any] = {"name": self.name}
        if self.namespace is not None:
            metadata["namespace"] = self.namespace
        for name, values in (("labels", self.labels), ("annotations", self.annotations)):
            if values:
                metadata[name] = dict(values)
        return {"apiVersion": API_VERSION, "kind": self.kind, "metadata": metadata, "spec": spec}


def to_resource(document: Document) -> Resource:
    """The resource that a document without problems describes."""
    value: Any = document.value  # a document that fits its schema
    metadata, spec = value["metadata"], dict(value["spec"])
    for name in ("fireFrom", "frontier", "hydrateFrom"):
        instant = parse_instant(spec.get(name))
        if instant is not None:
            spec[name] = instant
    if spec.get("retain") == "all":
        spec["retain"] = None
    return Resource(
        kind=value["kind"],
        name=metadata["name"],
        spec=msgspec.convert(spec, _SPECS[value["kind"]], dec_hook=_decode),
        namespace=metadata.get("namespace"),
        labels=metadata.get("labels", {}),
        annotations=metadata.get("annotations", {}),
        position=document.position(()),
        places=document.places,
        blocks=document.blocks,
    )


def resource_from(value: Mapping[str, Any], where: str = "document") -> Resource:
    """The resource of a document that came as values, from the catalog or the API of Kubernetes.

    Raises: UsageError with reason `resources` and all `problems`.
    """
    document = Document(where, dict(value))
    problems = find_problems(document)
    if problems:
        raise refuse(problems, REASON)
    return to_resource(document)


def stored_resource(value: Mapping[str, Any], where: str) -> Resource:
    """The resource of a document that was written by this version or an earlier one.

    Engines of views that are no more are passed over: they had a say in how a view is kept, and
    none in its answers. Raises: as `resource_from`.
    """
    spec = value.get("spec")
    if isinstance(spec, dict) and value.get("kind") == "View":
        former = spec.get("engine") in _FORMER_ENGINES
        value = {**value, "spec": {k: v for k, v in spec.items() if k != "engine" or not former}}
    return resource_from(value, where)


def _decode(kind: type, value: object) -> object:
    if kind is Milliseconds:
        return parse_duration(str(value))
    raise NotImplementedError(kind)


def _encode(value: object) -> object:
    if isinstance(value, Milliseconds):
        return format_duration(value)
    raise NotImplementedError(type(value))
