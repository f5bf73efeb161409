"""The custom resource definitions, from the schemas that `tidemill apply` validates with.

A structural schema has no formats of ours, no unknown fields and no types of two kinds. Forms
become patterns, text-or-number becomes int-or-string, and rules beyond schemas become CEL.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from io import StringIO
from typing import Any

from ruamel.yaml import YAML

from tidemill.manifests.definition_rules import FORMS, KEY_RULES, NAME_RULE, RULES, Form, Rule
from tidemill.runtime.resources import KINDS, schema

GROUP, VERSION = "tidemill.dev", "v1alpha1"
CATEGORY = "tidemill"
Schema = dict[str, Any]
"""A part of an OpenAPI schema: JSON."""

_KEPT = (
    "type", "description", "default", "enum", "required", "minimum", "maximum", "minLength",
    "maxLength", "minItems", "maxItems", "maxProperties",
)  # fmt: skip
_KEEP_MARK = "tidemill.dev/kept: {}\n"
_KEEP_TEMPLATE = """{{- if .Values.keep }}
    helm.sh/resource-policy: keep
    {{- end }}
"""


@dataclass(frozen=True, slots=True)
class Names:
    """Names of a kind in kubectl."""

    plural: str
    singular: str
    short: str


NAMES: Mapping[str, Names] = {
    kind: Names(f"{kind.lower()}s", kind.lower(), short)
    for kind, short in zip(KINDS, ("src", "tbl", "vw", "act", "arr", "hd"), strict=True)
}
_COLUMNS = (
    ("READY", "string", '.status.conditions[?(@.type=="Ready")].status', 0),
    ("SINCE", "string", ".status.since", 0),
    ("UPPER", "string", ".status.upper", 0),
    ("LAG", "string", ".status.lag", 0),
    ("AGE", "date", ".metadata.creationTimestamp", 0),
    ("HOLDERS", "integer", ".status.holders", 1),
    ("BATCHES", "integer", ".status.batches", 1),
    ("BYTES", "integer", ".status.bytes", 1),
    ("BEHIND", "integer", ".status.recordsBehind", 1),
    ("LEFT", "string", ".status.timeLeft", 1),
    ("REASON", "string", '.status.conditions[?(@.type=="Ready")].reason', 1),
)


def definition(kind: str) -> Schema:
    """The CustomResourceDefinition of a kind."""
    names = NAMES[kind]
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": [
            {"name": name, "type": kind_of, "jsonPath": path, "priority": priority}
            for name, kind_of, path, priority in _COLUMNS
        ],
        "schema": {"openAPIV3Schema": object_schema(kind)},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{names.plural}.{GROUP}",
            "labels": {"app.kubernetes.io/part-of": "tidemill"},
            "annotations": {"tidemill.dev/kept": {}},
        },
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": names.plural,
                "singular": names.singular,
                "shortNames": [names.short],
                "categories": [CATEGORY],
            },
            "versions": [version],
        },
    }


def object_schema(kind: str) -> Schema:
    """The schema of a whole object: spec as `tidemill apply` takes it, and status."""
    spec = structural(schema(kind))
    spec["x-kubernetes-validations"] = [_validation(rule) for rule in RULES[kind]]
    return {
        "type": "object",
        "description": spec["description"],
        "required": ["spec"],
        "x-kubernetes-validations": [_validation(NAME_RULE)],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": status_schema(),
        },
    }


def structural(source: Schema) -> Schema:
    """A JSON schema of ours as a structural schema."""
    made = {name: source[name] for name in _KEPT if name in source}
    if isinstance(source.get("type"), list):
        del made["type"]
        made["x-kubernetes-int-or-string"] = True
    if "format" in source:
        _add_form(made, FORMS[source["format"]])
    if source.get("properties"):
        made["properties"] = {n: structural(each) for n, each in source["properties"].items()}
    if isinstance(source.get("additionalProperties"), dict):
        made["additionalProperties"] = structural(source["additionalProperties"])
    if "propertyNames" in source:
        rule = KEY_RULES[source["propertyNames"]["format"]]
        made["x-kubernetes-validations"] = [_validation(rule)]
    if "items" in source:
        made["items"] = structural(source["items"])
        made |= _list_type(source)
    return made


def _list_type(source: Schema) -> Schema:
    """The identity of a list's elements: names, a set, or the whole list. The first two exclude
    twins.
    """
    if source["items"].get("type") == "object":
        return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
    return {"x-kubernetes-list-type": "set" if source.get("uniqueItems") else "atomic"}


def _add_form(made: Schema, form: Form) -> None:
    if form.pattern:
        made["pattern"] = form.pattern
    if form.length_max:
        made["maxLength"] = form.length_max
    if form.length_min:
        made["minLength"] = form.length_min
    if form.excluded:
        made["not"] = {"enum": list(form.excluded)}
    if form.rule is not None:
        made["x-kubernetes-validations"] = [_validation(form.rule)]


def _validation(rule: Rule) -> Schema:
    found = {"rule": rule.cel, "message": rule.message}
    return found if rule.field is None else {**found, "fieldPath": rule.field}


def status_schema() -> Schema:
    """Schema of the status that the operator writes: conditions, and frontiers some seconds old."""
    condition = {
        "type": "object",
        "required": ["type", "status", "lastTransitionTime", "reason", "message"],
        "properties": {
            "type": {"type": "string", "maxLength": 316},
            "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
            "observedGeneration": {"type": "integer", "format": "int64", "minimum": 0},
            "lastTransitionTime": {"type": "string", "format": "date-time"},
            "reason": {"type": "string", "minLength": 1, "maxLength": 1024},
            "message": {"type": "string", "maxLength": 32768},
        },
    }
    numbers = {
        "holders": "Who holds since back.",
        "batches": "Batches of the collections.",
        "bytes": "Stored bytes of the collections.",
        "recordsPerSecond": "Records that it writes, or changes that it takes in, per second.",
        "recordsBehind": "About how many of them are known and not there yet.",
    }
    texts = {
        "since": "The oldest instant at which the collection is exact.",
        "upper": "The first instant that may still change.",
        "lag": "How far upper was behind when this was written.",
        "timeLeft": "Estimated time until none is behind; unset where the end comes no nearer.",
        "oldestHolder": "Who holds since back the furthest.",
    }
    return {
        "type": "object",
        "description": "How it does: a copy, some seconds old, of what Tidemill itself says.",
        "properties": {
            "observedGeneration": {"type": "integer", "format": "int64"},
            "conditions": {
                "type": "array",
                "maxItems": 16,
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["type"],
                "items": condition,
            },
            **{name: {"type": "string", "description": says} for name, says in texts.items()},
            **{
                name: {"type": "integer", "format": "int64", "description": says}
                for name, says in numbers.items()
            },
            "reportedAt": {
                "type": "string",
                "format": "date-time",
                "description": "When this was written.",
            },
        },
    }


def template(kind: str) -> str:
    """The definition as a template of the chart: a switch decides whether helm may delete it."""
    writer = YAML()
    writer.default_flow_style = False
    writer.width = 4096
    # Helm reads this version, in which a bare `on` is true: the writer puts it in quotes.
    writer.version = (1, 1)
    stream = StringIO()
    writer.dump(definition(kind), stream)
    text = stream.getvalue().removeprefix("%YAML 1.1\n---\n")
    assert text.count(_KEEP_MARK) == 1
    assert "{{" not in text
    return text.replace(_KEEP_MARK, _KEEP_TEMPLATE)
