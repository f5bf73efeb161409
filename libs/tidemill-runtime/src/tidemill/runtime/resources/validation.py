"""A document against the schema of its kind: every mistake with its place and what to write
instead.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.resources import files
from itertools import chain, islice
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from jsonschema.validators import extend

from tidemill.arrangement.column_types import TYPE_NAMES
from tidemill.runtime.addresses import bare_url
from tidemill.runtime.documents import PROBLEMS_MAX, Document
from tidemill.runtime.problems import FieldPath, Problem, did_you_mean, field_name, shortened
from tidemill.runtime.resources.rules import broken_rules
from tidemill.runtime.resources.words import FORMATS, RULES, names_secret

KINDS = ("Source", "Table", "View", "Action", "Arrangement", "Hold")

_NAME_IT = "NAME, with places.secrets.NAME.file in the settings of the server"
FORMER_FIELDS = {
    "passwordFile": f"a resource names no file of a secret: write secret: {_NAME_IT}",
    "caFile": f"a resource names no file of a secret: write authority: {_NAME_IT}",
    "certificateFile": f"a resource names no file of a secret: write certificate: {_NAME_IT}",
    "keyFile": f"a resource names no file of a secret: write key: {_NAME_IT}",
}
"""Advice for fields that resources had."""

_TEXT_HINT = "write a text; the lines of one after | stand deeper than its key"

FIELDS_SHOWN = 3
"""Fields that the hint for a mapping names."""

_TYPES = {
    "object": "a mapping",
    "array": "a list",
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
}


@cache
def schema(name: str) -> dict[str, Any]:
    """The JSON schema of the spec of a kind, or of the `envelope` around it."""
    text = files("tidemill.runtime.resources").joinpath(f"schemas/{name.lower()}.json").read_text()
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def find_problems(document: Document) -> list[Problem]:
    """Everything that is wrong with a document; empty if it is a resource."""
    return list(islice(_problems(document), PROBLEMS_MAX))


def _problems(document: Document) -> Iterator[Problem]:
    value = document.value
    problems = list(islice(_against("envelope", document, ()), PROBLEMS_MAX))
    yield from problems
    if not isinstance(value, dict) or value.get("kind") not in KINDS:
        return
    kind, spec = str(value["kind"]), value.get("spec")
    if not isinstance(spec, dict):
        return
    right = True
    wrong = chain(_against(kind, document, ("spec",)), _unsayable(spec, document, ("spec",)))
    for problem in wrong:
        right = False
        yield problem
    for broken in broken_rules(kind, spec) if right else ():
        path = ("spec", *broken.path)
        position = document.key_position(path)
        yield Problem(position, field_name(path), broken.says, broken.hint)


def _unsayable(value: object, document: Document, path: FieldPath) -> Iterator[Problem]:
    """Texts with a NUL: no file, address or name can have one, and what is handed it says so late.

    And whole numbers with a point: the schemas take them, and nothing that counts does.
    """
    if isinstance(value, str) and "\0" in value:
        yield Problem(document.position(path), field_name(path), "has a NUL character")
    if isinstance(value, float) and value.is_integer():
        says = f"{value} is written as a number with a point"
        yield Problem(document.position(path), field_name(path), says, "write its digits alone")
    inner: Iterable[tuple[Any, object]] = ()
    if isinstance(value, dict):
        inner = value.items()
    elif isinstance(value, list):
        inner = enumerate(value)
    for step, each in inner:
        yield from _unsayable(each, document, (*path, step))


def _distinct(_: Any, wanted: bool, items: Any, __: Any) -> Iterator[ValidationError]:
    """The check of `uniqueItems`, in linear time.

    The package compares all pairs of items that have no order.
    """
    if wanted and isinstance(items, list):
        texts = {json.dumps(item, sort_keys=True) for item in items}
        if len(texts) < len(items):
            yield ValidationError("has items that are not unique")


_made: Any = extend  # the package leaves it untyped
_Validator = _made(Draft202012Validator, {"uniqueItems": _distinct})


@cache
def _validator(name: str) -> Any:
    return _Validator(schema(name), format_checker=FORMATS)


def _against(name: str, document: Document, base: FieldPath) -> Iterator[Problem]:
    value: object = document.value
    for step in base:
        value = value[step]  # type: ignore[index]  # the caller walked it before
    for error in _validator(name).iter_errors(value):
        yield from _problems_of(error, document, base)


def _problems_of(error: ValidationError, document: Document, base: FieldPath) -> Iterator[Problem]:
    """One mistake as the schema sees it, in words; unknown fields are one problem each."""
    path: FieldPath = (*base, *error.absolute_path)
    place = document.position(path)
    if "propertyNames" in error.absolute_schema_path:
        path = (*path, str(error.instance))
        place = document.key_position(path)
    field = field_name(path)
    value: Any = error.instance
    rule: Any = error.validator_value  # whatever the schema holds there
    around: Any = error.schema
    if "headers" in path[:-1] and names_secret(str(path[-1])):
        value = "…"
    match error.validator:
        case "additionalProperties":
            known = list(around["properties"])
            for name in value:
                if name not in known:
                    inner = (*path, name)
                    says = f'unknown field "{shortened(name)}"'
                    hint = FORMER_FIELDS.get(name) or did_you_mean(name, known)
                    yield Problem(document.key_position(inner), field_name(inner), says, hint)
        case "required":
            missing = error.message.split("'")[1]
            near = document.key_position(path) if path else place
            yield Problem(near, field, f'missing field "{missing}"', _purpose(around, missing))
        case "type":
            wanted = " or ".join(
                _TYPES[each] for each in ([rule] if isinstance(rule, str) else rule)
            )
            hint = RULES.get(around.get("format"), "") or _type_hint(rule, value, around)
            yield Problem(place, field, f"{_shown(value)} is not {wanted}", hint)
        case "enum":
            words = [str(each) for each in rule]
            hint = f"write {words[0]}" if len(words) == 1 else did_you_mean(value, words)
            yield Problem(place, field, f"{_shown(value)} is not allowed", hint)
        case "format":
            said = bare_url(value) if str(rule).endswith("-url") else value
            meant = did_you_mean(value, TYPE_NAMES) if rule == "column-type" else ""
            hint = f"{meant} {error.cause}" if meant.startswith("did") else str(error.cause)
            if rule == "column-type" and str(value).startswith("decimal(") and ")" not in value:
                hint = 'within { } a type with a comma stands in quotes: "decimal(10, 2)"'
            yield Problem(place, field, f"{_shown(said)} is not allowed", hint)
        case "minimum" | "maximum":
            side = "least" if error.validator == "minimum" else "most"
            yield Problem(place, field, f"{_shown(value)} is not allowed", f"at {side} {rule}")
        case "minItems" | "minLength":
            hint = "write at least one" if isinstance(value, list) else _TEXT_HINT
            yield Problem(place, field, "is empty", hint)
        case "maxItems" | "maxLength" | "maxProperties":
            yield Problem(place, field, "is too long", f"at most {rule}")
        case "uniqueItems":
            yield Problem(place, field, "holds something twice")
        case _:
            yield Problem(place, field, shortened(error.message))


def _purpose(around: Any, missing: str) -> str:  # a schema
    """The purpose of a missing field, from its description."""
    described = str(around["properties"][missing].get("description", ""))
    return described[:1].lower() + described[1:].rstrip(".") if described else ""


def _type_hint(rule: object, value: object, around: Any) -> str:  # a schema
    if rule == "object":
        fields = around.get("required", ())[:FIELDS_SHOWN]
        written = ", ".join(f"{name}: …" for name in fields)
        return f"write {{{written or ('' if 'properties' in around else 'NAME: …')}}}"
    if value is None:
        return "write a value, or leave the field out"
    if rule == "array":
        return "write [ ] around it, or a line that begins with - for each"
    if rule == "string" and isinstance(value, int | float):
        return f'write "{json.dumps(value)}" in quotes'
    return ""


def _shown(value: object) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    text = json.dumps(shortened(value) if isinstance(value, str) else value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + '…"'
