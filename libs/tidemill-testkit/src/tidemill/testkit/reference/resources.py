"""docs/reference/resources.md: every field of every kind, from the schemas that documents meet."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tidemill.manifests.definition_rules import RULES as FIELD_RULES
from tidemill.manifests.definitions import NAMES, status_schema
from tidemill.runtime.resources.validation import KINDS, schema
from tidemill.runtime.resources.words import RULES as FORMS
from tidemill.testkit.reference.pages import code, head, sentence, table, wrapped

_COLUMNS = ("field", "type", "default", "meaning")
_TYPES = {
    "object": "mapping", "array": "list", "string": "text",
    "integer": "whole number", "number": "number", "boolean": "true or false",
}  # fmt: skip


def _type(field: Mapping[str, Any]) -> str:
    """The type of a field with its form, its words or its bounds."""
    if "enum" in field:
        return ", ".join(code(str(each)) for each in field["enum"])
    if "format" in field and field["format"] in FORMS:
        return f"[{field['format']}](#forms)"
    wanted = field.get("type", "object")
    kinds = " or ".join(_TYPES[each] for each in ([wanted] if isinstance(wanted, str) else wanted))
    low, high = field.get("minimum"), field.get("maximum")
    if "items" in field:
        kinds = f"list of {_type(field['items'])}"
    elif isinstance(field.get("additionalProperties"), dict):
        kinds = f"mapping to {_type(field['additionalProperties'])}"
    bounds = [f"from {low:,}"] if low is not None else []
    bounds += [f"to {high:,}"] if high is not None else []
    return " ".join([kinds, *bounds])


def _fields(source: Mapping[str, Any], path: str) -> Iterator[tuple[str, str, str, str]]:
    """A row for each field of a schema, outer ones before those inside them."""
    for name, field in source.get("properties", {}).items():
        here = f"{path}{name}"
        required = name in source.get("required", ())
        default = "required" if required else ""
        if "default" in field:
            default = code(json.dumps(field["default"]))
        yield code(here), _type(field), default, sentence(field["description"])
        inner = field.get("items")
        yield from _fields(field, f"{here}.")
        if isinstance(inner, dict):
            yield from _fields(inner, f"{here}[].")
        each = field.get("additionalProperties")
        if isinstance(each, dict):
            yield from _fields(each, f"{here}.NAME.")


def page() -> str:
    """The whole page."""
    lines = head(
        "Resources",
        "A resource is a YAML document with the four fields below. `tidemill check` finds its "
        "mistakes, `tidemill apply` creates it, and `kubectl` takes the same document on a cluster. "
        "A field without a default is not set if it is left out.",
    )
    lines += table(_COLUMNS, _fields(schema("envelope"), ""))
    for kind in KINDS:
        spec = schema(kind)
        names = NAMES[kind]
        lines += ["", f"## {kind}", "", *wrapped(spec["description"])]
        lines += [
            "",
            f"Names for kubectl: `{names.plural}`, `{names.singular}`, `{names.short}`.",
            "",
        ]
        lines += table(_COLUMNS, _fields(spec, "spec."))
        rules = [rule.message for rule in FIELD_RULES[kind]]
        if rules:
            lines += ["", f"Rules between the fields of a {kind}:", ""]
            lines += [f"* {sentence(says)}" for says in dict.fromkeys(rules)]
    status = {**status_schema(), "properties": _described(status_schema()["properties"])}
    lines += ["", "## Status", "", *wrapped(status["description"]), ""]
    lines += table(
        ("field", "type", "meaning"), (r[:2] + r[3:] for r in _fields(status, "status."))
    )
    lines += ["", "## Forms", "", "Texts of a form follow its rule.", ""]
    lines += table(("form", "rule"), ((code(name), sentence(rule)) for name, rule in FORMS.items()))
    return "\n".join(lines) + "\n"


def _described(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Those fields that say what they mean; the others are Kubernetes' own."""
    return {name: field for name, field in fields.items() if "description" in field}
