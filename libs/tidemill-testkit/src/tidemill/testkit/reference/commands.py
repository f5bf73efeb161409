"""docs/reference/cli.md: every command with its arguments and options, from their parsers."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import typer

from tidemill.client import exits
from tidemill.client.command import app
from tidemill.client.plugins import load, plugins
from tidemill.testkit.reference.pages import code, head, said_of_names, sentence, table, wrapped

_TYPES: Mapping[Any, str] = {int: "whole number", float: "number", Path: "path"}


def _help(text: str) -> Iterator[str]:
    r"""Paragraphs of a help text; a block behind \b is shown as it is."""
    for block in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        yield ""
        kept = block.strip("\n").partition("\b\n")
        if kept[1]:
            yield from wrapped(kept[0])
            yield from ("```sh", *inspect.cleandoc("\n" + kept[2]).splitlines(), "```")
        else:
            yield from wrapped(block)


def _default(parameter: Any, root: Path) -> str:  # click has no types here
    value = parameter.default
    if isinstance(value, Path) and value.is_relative_to(root):
        value = value.relative_to(root)
    if parameter.required:
        return "required"
    if value is None or value is False or value == () or callable(value):
        return ""
    return code(str(getattr(value, "value", value)))


def _kind(parameter: Any) -> str:  # likewise
    wanted = parameter.type_descriptor.annotation
    if isinstance(wanted, type) and issubclass(wanted, Enum):
        return ", ".join(code(str(each.value)) for each in wanted)
    if getattr(parameter, "is_flag", False):
        return "flag"
    name = parameter.metavar or _TYPES.get(wanted, "text")
    return f"{name}, repeatable" if parameter.multiple or parameter.nargs == -1 else name


def _parameters(command: Any, context: Any, root: Path) -> list[tuple[str, str, str, str]]:
    """A row for each argument and option that help shows."""
    rows = []
    for each in command.get_params(context):
        if each.name == "help" or getattr(each, "hidden", False):
            continue
        argument = each.param_type_name == "argument"
        names = (
            ((each.metavar or each.name.upper()),)
            if argument
            else (*each.opts, *each.secondary_opts)
        )
        said = getattr(each, "help", None)
        if not said:
            raise LookupError(f"{context.command_path} {names[0]} has no help")
        rows.append(
            (", ".join(map(code, names)), _kind(each), _default(each, root), sentence(said))
        )
    return rows


def _usage(command: Any, path: str) -> str:
    """The call of the command: options, then its arguments in their order."""
    words = [path, "[OPTIONS]"]
    for each in command.params:
        if each.param_type_name == "argument":
            name = (each.metavar or each.name.upper()) + ("..." if each.nargs == -1 else "")
            words.append(name if each.required else f"[{name}]")
    return " ".join(words)


def _section(command: Any, path: str, level: int, root: Path) -> Iterator[str]:
    context = typer.Context(command, info_name=path)
    yield from ("", f"{'#' * level} {path}")
    yield from _help(command.help or "")
    yield from ("", "```", _usage(command, path), "```")
    rows = _parameters(command, context, root)
    if rows:
        yield ""
        yield from table(("name", "type", "default", "meaning"), rows)
    for name, inner in sorted(getattr(command, "commands", {}).items()):
        yield from _section(inner, f"{path} {name}", level + 1, root)


def page(root: Path) -> str:
    """The whole page, with the commands of every member of a checkout."""
    group: Any = typer.main.get_command(app)
    own = group.commands
    found = {**own, **{name: load(point) for name, point in plugins().items()}}
    lines = head("Command line", "The command is `tidemill`; each subcommand has `--help`.")
    context = typer.Context(group, info_name="tidemill")
    lines += ["## tidemill", *_help(group.help or ""), ""]
    lines += table(("option", "type", "default", "meaning"), _parameters(group, context, root))
    lines += ["", "## Exit codes", ""]
    (codes,) = (
        node
        for node in ast.parse(inspect.getsource(exits)).body
        if isinstance(node, ast.ClassDef) and node.name == "Exit"
    )
    said = said_of_names(codes.body)
    lines += table(("code", "meaning"), ((str(each.value), said[each.name]) for each in exits.Exit))
    for name in sorted(found):
        lines += _section(found[name], f"tidemill {name}", 2, root)
    return "\n".join(lines) + "\n"
