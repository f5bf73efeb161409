"""Answers of an API server to an object of a custom resource: schema, then rules.

    refusals(schema, {"spec": …})              on create
    takes(schema, {"spec": …})                 whether there are none, at a third of the cost
    refusals(schema, new, old)                 on update: rules that name oldSelf run, too

Unknown fields are refused, as kubectl asks the server to. Values are not defaulted before.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, cached_property
from typing import Any

import cel
import jsonschema_rs
from jsonschema import Draft202012Validator

_MISSING = object()
_METADATA = {"type": "object"}


def refusals(schema: dict[str, Any], new: Any, old: Any = _MISSING) -> list[str]:  # any JSON
    """Why the server would refuse the object; empty if it takes it.

    Rules run if the schema fits.
    """
    shape = [f"{error.json_path}: {error.message}" for error in _validator(schema).iter_errors(new)]
    return shape or list(_broken(schema, new, old, "$"))


def takes(schema: dict[str, Any], new: Any) -> bool:  # any JSON
    """Whether the server would take a new object: `refusals` is empty."""
    if id(schema) not in _COMPILED:
        _COMPILED[id(schema)] = schema, jsonschema_rs.Draft202012Validator(_plain(schema))
    if not _COMPILED[id(schema)][1].is_valid(new):
        return False
    return next(_broken(schema, new, _MISSING, "$"), None) is None


_COMPILED: dict[int, tuple[dict[str, Any], jsonschema_rs.Draft202012Validator]] = {}
"""Validators that say yes or no, as those below."""


def _validator(schema: dict[str, Any]) -> Draft202012Validator:
    """The validator of a structural schema, which nobody changes any more; made once."""
    if id(schema) not in _VALIDATORS:
        _VALIDATORS[id(schema)] = schema, Draft202012Validator(_plain(schema))
    return _VALIDATORS[id(schema)][1]


_VALIDATORS: dict[int, tuple[dict[str, Any], Draft202012Validator]] = {}
"""Validators by the identity of their schemas, which are kept so that no other one takes it."""


def _plain(schema: dict[str, Any]) -> dict[str, Any]:
    """The structural schema as a JSON schema that means the same."""
    made: dict[str, Any] = {}
    for name, value in schema.items():
        match name:
            case "properties":
                made[name] = {each: _plain(inner) for each, inner in value.items()}
            case "items" | "additionalProperties":
                made[name] = _plain(value)
            case "x-kubernetes-int-or-string":
                made["anyOf"] = [{"type": "integer"}, {"type": "string"}]
            case "pattern" | "format" | "default" | "description":
                pass  # patterns are RE2, and run with the rules
            case _ if not name.startswith("x-kubernetes"):
                made[name] = value
    if schema.get("type") == "object" and schema != _METADATA:
        made.setdefault("additionalProperties", False)
    return made


def _broken(schema: dict[str, Any], new: Any, old: Any, path: str) -> Iterator[str]:
    alone, beside = _Known({"self": new}), _Known({"self": new, "oldSelf": old})
    for rule in _rules(schema):
        names_old = "oldSelf" in rule["rule"]
        if names_old and old is _MISSING:
            continue
        if not _holds(rule["rule"], beside if names_old else alone):
            yield f"{path}: {rule['message']}"
    yield from _twins(schema, new, path)
    if isinstance(new, dict):
        inner = schema.get("properties", {})
        others = schema.get("additionalProperties")
        for name, value in new.items():
            below = inner.get(name, others)
            if isinstance(below, dict):
                before = old.get(name, _MISSING) if isinstance(old, dict) else _MISSING
                yield from _broken(below, value, before, f"{path}.{name}")
    if isinstance(new, list) and "items" in schema:
        for index, value in enumerate(new):
            yield from _broken(schema["items"], value, _MISSING, f"{path}[{index}]")


def _rules(schema: dict[str, Any]) -> list[dict[str, str]]:
    found = list(schema.get("x-kubernetes-validations", ()))
    if "pattern" in schema:
        quoted = schema["pattern"].replace("\\", "\\\\").replace("'", "\\'")
        found.append({"rule": f"self.matches('{quoted}')", "message": "does not match"})
    return found


def _twins(schema: dict[str, Any], new: Any, path: str) -> Iterator[str]:
    """Elements that are there twice, in a list whose kind excludes that."""
    kind = schema.get("x-kubernetes-list-type")
    if kind == "set" and len({repr(each) for each in new}) != len(new):
        yield f"{path}: holds something twice"
    if kind == "map":
        keys = schema["x-kubernetes-list-map-keys"]
        if len({tuple(each[key] for key in keys) for each in new}) != len(new):
            yield f"{path}: holds something twice"


class _Known:
    """Values that rules name, and both of their forms, each made once."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    @cached_property
    def text(self) -> str:
        return repr(self._values)

    @cached_property
    def context(self) -> Any:  # the evaluator has no types
        return cel.Context(variables=self._values)


def _holds(rule: str, known: _Known) -> bool:
    """Whether the rule is true; one that fails on its way is not.

    Cost: one evaluation of each rule and value. A regular expression is compiled by each.
    """
    asked = rule, known.text
    if asked not in _ANSWERS:
        _ANSWERS[asked] = _answered(rule, known)
    return _ANSWERS[asked]


_ANSWERS: dict[tuple[str, str], bool] = {}
"""Answers of the evaluator by rule and value: documents that differ in one field share most."""


def _answered(rule: str, known: _Known) -> bool:
    try:
        return _program(rule).execute(known.context) is True
    except (RuntimeError, TypeError, ValueError):
        return False


@cache
def _program(rule: str) -> Any:  # the evaluator has no types
    return cel.compile(rule)
