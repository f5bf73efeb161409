"""Objects of Kubernetes as fields, each of which can have an owner."""

from __future__ import annotations

from typing import Any, TypeAlias

Path: TypeAlias = tuple[Any, ...]
"""Names of fields; an element of a set is ("=", value), one of a list of named things ("@", name).
"""

Fields: TypeAlias = dict[Path, Any]
"""Path → value that is owned as a whole."""

_SETS = {("metadata", "finalizers")}
_NAMED = {("status", "conditions"): "type"}


def flat(document: Any, path: Path = ()) -> Fields:  # JSON
    """The fields of an object."""
    if isinstance(document, dict) and document:
        found: Fields = {}
        for name, value in document.items():
            found |= flat(value, (*path, name))
        return found
    if isinstance(document, list) and path in _SETS:
        return {(*path, ("=", value)): value for value in document}
    if isinstance(document, list) and path in _NAMED:
        found = {}
        for value in document:
            found |= flat(value, (*path, ("@", value[_NAMED[path]])))
        return found
    return {path: document}


def nested(fields: Fields) -> dict[str, Any]:
    """The object that has these fields."""
    made: dict[str, Any] = {}
    for path, value in fields.items():
        _put(made, (), path, value)
    return made


def _put(into: dict[str, Any], before: Path, path: Path, value: Any) -> None:
    name, rest = path[0], path[1:]
    here = (*before, name)
    if not rest:
        into[name] = value
    elif here in _SETS:
        into.setdefault(name, []).append(value)
    elif here in _NAMED:
        named = _NAMED[here]
        elements = into.setdefault(name, [])
        element = next((each for each in elements if each.get(named) == rest[0][1]), None)
        if element is None:
            element = {named: rest[0][1]}
            elements.append(element)
        if rest[1:]:
            _put(element, (*here, rest[0]), rest[1:], value)
    else:
        _put(into.setdefault(name, {}), here, rest, value)
