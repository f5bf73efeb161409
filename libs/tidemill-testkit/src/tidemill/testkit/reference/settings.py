"""docs/reference/settings.md: every setting with its variable, default, unit and meaning."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Literal, get_args, get_origin

import msgspec

from tidemill.client import settings as client
from tidemill.runtime.settings import struct_by_name, struct_in, variable_of, variables
from tidemill.testkit.reference.pages import (
    code,
    head,
    paragraphs,
    said_of_constants,
    said_of_fields,
    table,
)
from tidemill_operator.settings import OperatorSettings
from tidemill_server.settings import ServerSettings

SERVER, OPERATOR = "TIDEMILL_UP_", "TIDEMILL_OPERATOR_"
_UNITS = {
    "bytes_per_s": "bytes per second", "_per_s": "per second",
    "_s": "seconds", "_ms": "milliseconds",
    "_bytes": "bytes", "_mb": "MiB",
}  # fmt: skip
_SIZES = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def unit_of(name: str) -> str:
    """The unit that the end of a name states; `_min` and `_max` stand behind it."""
    stem = name.removesuffix("_max").removesuffix("_min")
    return next((unit for end, unit in _UNITS.items() if stem.endswith(end)), "")


def _default(field: msgspec.structs.FieldInfo) -> str:
    value = field.default
    if value is msgspec.NODEFAULT:
        factory = field.default_factory
        if factory is msgspec.NODEFAULT:
            return "required"
        value = factory()
    if isinstance(value, int | float) and unit_of(field.encode_name).startswith("bytes"):
        for size, name in _SIZES:
            if value % size == 0 and value >= size:
                return f"{value / size:g} {name}"
    shown = json.dumps(list(value) if isinstance(value, tuple) else value)
    return code(shown)


def _type(annotation: Any) -> str:  # types of fields are anything
    if get_origin(annotation) is Literal:
        return ", ".join(code(str(each)) for each in get_args(annotation))
    text = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    for long, short in (
        ("typing.", ""), ("collections.abc.", ""), ("NoneType", "None"), ("str", "text"),
        ("tuple[text, ...]", "list of text"),
    ):  # fmt: skip
        text = text.replace(long, short)
    return text


def _sections(struct: type[msgspec.Struct], prefix: str, path: tuple[str, ...]) -> Iterator[str]:
    """The table of one struct, then a section for each struct in it."""
    said = said_of_fields(struct)
    fields = msgspec.structs.fields(struct)
    rows = [
        (
            code(".".join((*path, field.encode_name))),
            code(variable_of(prefix, (*path, field.encode_name))),
            _type(field.type), _default(field), unit_of(field.encode_name),
            said[field.name],
        )
        for field in fields
        if struct_in(field.type) is None
    ]  # fmt: skip
    if rows:
        yield ""
        yield from table(("key", "variable", "type", "default", "unit", "meaning"), rows)
    for field in fields:
        inner = struct_in(field.type)
        if inner is not None:
            here = (*path, field.encode_name)
            level = "#" * (2 + len(here))
            yield from ("", f"{level} `{'.'.join(here)}`")
            yield from paragraphs(said.get(field.name) or inner.__doc__ or "")
            yield from _sections(inner, prefix, here)
        entry = struct_by_name(field.type)
        if entry is not None:
            yield ""
            yield from table(("key", "type", "default", "meaning"), _entries(field, entry, path))


def _entries(
    field: msgspec.structs.FieldInfo, entry: type[msgspec.Struct], path: tuple[str, ...]
) -> Iterator[tuple[str, str, str, str]]:
    """A row for each field of the entries of a mapping; its variable is that of the mapping."""
    said = said_of_fields(entry)
    for each in msgspec.structs.fields(entry):
        key = ".".join((*path, field.encode_name, "NAME", each.encode_name))
        yield code(key), _type(each.type), _default(each), said[each.name]


def _of_client(module: ModuleType) -> Iterator[tuple[str, str]]:
    for name, meaning in said_of_constants(module).items():
        yield code(getattr(module, name)), meaning


def known_variables() -> str:
    """Every variable that some command reads, one a line."""
    named = [
        *(name for name, _ in variables(ServerSettings, SERVER)),
        *(name for name, _ in variables(OperatorSettings, OPERATOR)),
        *(getattr(client, name) for name in said_of_constants(client)),
    ]
    return "\n".join(named) + "\n"


def page() -> str:
    """The whole page."""
    lines = head(
        "Settings",
        "A setting is a key of the file that `--config` names, in TOML or YAML, or a variable of "
        "the environment, which wins. A list or a mapping in a variable is JSON. An unknown key is "
        "refused. A variable that begins with `TIDEMILL_` and that no command knows is refused at "
        "the start of every command, with the nearest known name and exit status 2. Variables that "
        "Kubernetes sets for a service of that name (`TIDEMILL_SERVICE_HOST`) are left alone.",
    )
    lines += ["## Server", "", "`tidemill up` and the programs of the services read these."]
    lines += _sections(ServerSettings, SERVER, ())
    lines += ["", "## Operator", "", "`tidemill operator` reads these."]
    lines += _sections(OperatorSettings, OPERATOR, ())
    lines += ["", "## Client", "", "The command and the Python client read these variables.", ""]
    lines += table(("variable", "meaning"), _of_client(client))
    return "\n".join(lines) + "\n"
