"""Settings: one frozen struct for each service, from a file and the environment, loaded once.

The file is TOML or YAML. A variable PREFIX_FIELD overrides a field, PREFIX_OUTER__INNER one inside
a nested struct. Unknown keys are refused, with their place and the nearest name that exists.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

import msgspec

from tidemill.errors.variables import refuse_unknown_variables
from tidemill.runtime.documents import Document, Plain, parse_yaml
from tidemill.runtime.durations import DURATION_RULE, Milliseconds, parse_duration
from tidemill.runtime.problems import (
    FieldPath,
    Position,
    Problem,
    did_you_mean,
    field_name,
    refuse,
)

S = TypeVar("S", bound=msgspec.Struct)
REASON = "settings"
_AT = re.compile(r"^(?P<says>.*?)(?: - at `\$(?P<path>.*)`)?$", re.S)
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")


def load(
    struct: type[S],
    file: Path | None = None,
    env_prefix: str = "",
    environment: Mapping[str, str] | None = None,
    others: Collection[str] = (),
) -> S:
    """`struct` with the values of `file`, overridden by variables that begin with `env_prefix`.

    Sections in `others` belong to other programs that share the file: unless the struct has them,
    they are not looked at. Raises: UsageError with every problem, each with file, line and field
    as far as they are known.
    """
    document = Document("defaults", {}) if file is None else _read(file)
    problems: list[Problem] = []
    if not isinstance(document.value, dict):
        raise refuse([Problem(document.position(()), "", "settings are a mapping")], REASON)
    foreign = set(others) - _fields(struct).keys()
    for section in foreign:
        document.value.pop(section, None)
    _check_names(struct, document.value, (), document, problems)
    if env_prefix:
        given = os.environ if environment is None else environment
        not_ours = tuple(f"{variable_of(env_prefix, (section,))}__" for section in foreign)
        ours = {v: text for v, text in given.items() if not v.startswith(not_ours)}
        _override(struct, document, env_prefix, ours, problems)
    if not problems:
        try:
            found = msgspec.convert(document.value, struct, strict=False, dec_hook=_decode)
            problems += _below_zero(found, (), document)
            if not problems:
                return found
        except msgspec.ValidationError as error:
            problems.append(_converted(error, document))
    raise refuse(problems, REASON)


def _below_zero(found: msgspec.Struct, path: FieldPath, document: Document) -> Iterator[Problem]:
    """Numbers that count or last nothing: no setting may be less than 0, or no number."""
    for name in found.__struct_fields__:
        value, place = getattr(found, name), (*path, name)
        if isinstance(value, msgspec.Struct):
            yield from _below_zero(value, place, document)
        elif isinstance(value, int | float) and not value >= 0:
            yield Problem(
                document.position(place), field_name(place), f"{value} is not allowed",
                "write a number from 0 on",
            )  # fmt: skip


def _read(file: Path) -> Document:
    try:
        text = file.read_text()
    except OSError as error:
        says = f"cannot be read: {error.strerror}"
        raise refuse([Problem(Position(str(file)), "", says)], REASON) from error
    if file.suffix != ".toml":
        documents, problems = parse_yaml(text, str(file))
        if len(documents) > 1:
            problems.append(Problem(documents[1].position(()), "", "settings are one document"))
        if problems:
            raise refuse(problems, REASON)
        return documents[0] if documents else Document(str(file), {})
    try:
        value = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = re.search(r"line (\d+), column (\d+)", str(error))
        position = Position(str(file), *map(int, place.groups())) if place else Position(str(file))
        raise refuse([Problem(position, "", f"not TOML: {error}")], REASON) from None
    places = _toml_places(text, str(file))
    return Document(str(file), value, places, dict(places))


def _toml_places(text: str, file: str) -> dict[FieldPath, Position]:
    """The line of each key, as far as tables are written with headers."""
    places: dict[FieldPath, Position] = {}
    table: FieldPath = ()
    for number, line in enumerate(text.splitlines(), 1):
        header = re.match(r"\s*\[\s*([\w.\-\"]+)\s*\]", line)
        key = re.match(r"\s*([\w.\-\"]+)\s*=", line)
        if header:
            table = tuple(header.group(1).replace('"', "").split("."))
            places[table] = Position(file, number)
        elif key:
            path = (*table, *key.group(1).replace('"', "").split("."))
            places[path] = Position(file, number)
    return places


def _fields(struct: type[msgspec.Struct]) -> dict[str, Any]:
    """Name in a file → type of each field of a struct."""
    return {each.encode_name: each.type for each in msgspec.structs.fields(struct)}


def struct_in(annotation: Any) -> type[msgspec.Struct] | None:  # types of fields are anything
    """The struct that a field holds, directly or as one of several possible types."""
    if get_origin(annotation) is dict:
        return None
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, msgspec.Struct):
            return candidate
    return None


def struct_by_name(annotation: Any) -> type[msgspec.Struct] | None:  # types of fields are anything
    """The struct of each entry of a field that is a mapping."""
    return struct_in(get_args(annotation)[1]) if get_origin(annotation) is dict else None


def _check_names(
    struct: type[msgspec.Struct],
    value: dict[str, Plain],
    path: FieldPath,
    document: Document,
    problems: list[Problem],
) -> None:
    fields = _fields(struct)
    for name, inner in value.items():
        here = (*path, name)
        if name not in fields:
            says = f'unknown setting "{name}"'
            place = document.key_position(here)
            problems.append(Problem(place, field_name(here), says, did_you_mean(name, fields)))
            continue
        nested = struct_in(fields[name])
        if nested is not None and isinstance(inner, dict):
            _check_names(nested, inner, here, document, problems)
        named = struct_by_name(fields[name])
        if named is not None and isinstance(inner, dict):
            for key, each in inner.items():
                if isinstance(each, dict):
                    _check_names(named, each, (*here, key), document, problems)


def _override(
    struct: type[msgspec.Struct],
    document: Document,
    prefix: str,
    given: Mapping[str, str],
    problems: list[Problem],
) -> None:
    """Put the values of variables into the document."""
    known = dict(variables(struct, prefix.rstrip("_").upper() + "_"))
    start = prefix.rstrip("_").upper() + "_"
    for variable, text in sorted(given.items()):
        if not variable.startswith(start):
            continue
        place = Position(f"environment variable {variable}")
        if variable not in known:
            problems.append(Problem(place, "", "unknown setting", did_you_mean(variable, known)))
            continue
        path = known[variable]
        target: Any = document.value  # plain values, walked by key
        for step in path[:-1]:
            target = target.setdefault(step, {})
        target[path[-1]] = _structured(text)
        document.places[path] = document.keys[path] = place


def check_environment() -> None:
    """Refuse variables of this process that no command knows. Raises: SystemExit with status 2."""
    refuse_unknown_variables(os.environ)


def variables(
    struct: type[msgspec.Struct], prefix: str, path: FieldPath = ()
) -> list[tuple[str, FieldPath]]:
    """The variable of every field that is not a struct itself."""
    found: list[tuple[str, FieldPath]] = []
    for name, annotation in _fields(struct).items():
        nested, here = struct_in(annotation), (*path, name)
        if nested is None:
            found.append((variable_of(prefix, here), here))
        else:
            found += variables(nested, prefix, here)
    return found


def variable_of(prefix: str, path: FieldPath) -> str:
    """The variable that overrides the field at a path: PREFIX_OUTER__INNER."""
    return prefix + "__".join(str(name).upper().replace("-", "_") for name in path)


def _structured(text: str) -> Plain:
    """A list or a mapping is written as JSON, everything else as itself."""
    if text[:1] in ("[", "{"):
        try:
            value: Plain = msgspec.json.decode(text)
        except msgspec.DecodeError:
            return text
        return value
    return text


def _decode(kind: type, value: object) -> object:
    """Types of ours that a file writes as text."""
    if kind is Milliseconds:
        duration = parse_duration(value) if isinstance(value, str) else None
        if duration is None:
            raise ValueError(DURATION_RULE)
        return duration
    if kind is Path:
        return Path(str(value))
    raise NotImplementedError(kind)


def _converted(error: msgspec.ValidationError, document: Document) -> Problem:
    """The first value that does not fit its type, with its place."""
    match = _AT.match(str(error))
    assert match is not None
    path: FieldPath = tuple(
        name or (0 if index == "..." else int(index))
        for name, index in _STEP.findall(match["path"] or "")
    )
    says = match["says"][:1].lower() + match["says"][1:]
    hint = 'a list in a variable is JSON: ["a", "b"]' if "`array`, got `str`" in says else ""
    return Problem(document.position(path), field_name(path), says, hint)
