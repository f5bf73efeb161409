"""Subcommands that other distributions add, by entry points of the group `tidemill.commands`.

Listing them imports none: the line of help is read from the source text. A plugin that cannot be
imported is one line when it is called, and the other subcommands go on working.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Container
from functools import cache
from importlib.machinery import PathFinder
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from tidemill.client.exits import Exit
from tidemill.client.near_commands import unknown_command

GROUP = "tidemill.commands"

OFFLINE = "tidemill.offline"
"""Group of what subcommands do with --offline, in the stores of a server that does not run."""


@cache
def plugins() -> dict[str, EntryPoint]:
    """The plugins of this installation, by name."""
    return {point.name: point for point in sorted(entry_points(group=GROUP))}


def offline_command(name: str) -> Callable[..., None]:
    """The implementation of a subcommand on the stores, without a server.

    Raises: UsageError if no installed distribution has one.
    """
    from tidemill.errors import UsageError

    for point in entry_points(group=OFFLINE, name=name):
        loaded: Callable[..., None] = point.load()
        return loaded
    raise UsageError(
        f"{name} --offline needs the server's own package: call it where `tidemill up` runs",
        reason="offline",
    )


def first_line(point: EntryPoint) -> str:
    """The first line of the docstring of what the plugin names, without importing it."""
    source = source_of(point.module)
    if source is None:
        return "(cannot be loaded)"
    tree = ast.parse(source.read_text(encoding="utf-8"))
    named = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == point.attr
    ]
    text = ast.get_docstring(named[0] if named else tree) or ""
    return text.split("\n")[0]


def source_of(module: str) -> Path | None:
    """The file of a module, found without importing the packages that it lies in."""
    spec, places, name = None, None, ""
    for part in module.split("."):
        name = f"{name}.{part}" if name else part
        spec = find_spec(name) if places is None else PathFinder.find_spec(name, places)
        if spec is None:
            return None
        places = spec.submodule_search_locations
    return Path(spec.origin) if spec is not None and spec.origin else None


def load(point: EntryPoint) -> Any:
    """The plugin as a command of typer's, be it an app or a function."""
    try:
        found: Any = point.load()
    except Exception as error:  # a broken plugin is a line, whatever it raised
        print(
            f"tidemill: the subcommand {point.name!r} cannot be loaded from {point.module}: "
            f"{type(error).__name__}: {error}",
            file=sys.stderr,
        )
        raise typer.Exit(Exit.FAILED) from None
    if isinstance(found, typer.Typer):
        return typer.main.get_command(found)
    return function_command(found)


def function_command(function: Callable[..., None]) -> Any:
    """A command made of one function."""
    app = typer.Typer(add_completion=False)
    app.command()(function)
    return typer.main.get_command(app)


ANYWHERE = (
    "--address", "--tls-ca", "--tls-cert", "--tls-key", "--tls-name", "--token-file",
)  # fmt: skip
"""Options of the connection."""


def connection_first(arguments: list[str], own: Container[str]) -> list[str]:
    """The arguments with options of the connection in front; those of a plugin's command unchanged.

    Arguments behind a lone `--` are not looked at.
    """
    end = arguments.index("--") if "--" in arguments else len(arguments)
    connection: list[str] = []
    others: list[str] = []
    taken = iter(arguments[:end])
    for argument in taken:
        if argument in ANYWHERE:
            connection += [argument, *islice(taken, 1)]
        elif argument.startswith(tuple(f"{option}=" for option in ANYWHERE)):
            connection.append(argument)
        else:
            others.append(argument)
    command = next((argument for argument in others if not argument.startswith("-")), None)
    return [*connection, *others, *arguments[end:]] if command in own else arguments


class PluginGroup(TyperGroup):
    """Our own subcommands, then those of the plugins."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Accept options of the connection anywhere on the line."""
        return super().parse_args(ctx, connection_first(args, self.commands))

    def list_commands(self, ctx: Any) -> list[str]:
        """Own subcommands, then those of plugins."""
        own = list(super().list_commands(ctx))
        return own + [name for name in plugins() if name not in own]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """One of our own, or a stand-in of a plugin: its name and its line of help."""
        own = super().get_command(ctx, cmd_name)
        point = plugins().get(cmd_name)
        if own is not None or point is None:
            return own
        return TyperCommand(cmd_name, callback=None, help=first_line(point))

    def invoke(self, ctx: Any) -> Any:
        """Run the subcommand; a value that it does not take is told in plain words."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ")
            raise

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The subcommand that is about to run; a plugin is imported here."""
        word = args[0]
        known = word.startswith("-") or self.get_command(ctx, word) is not None
        if not known and not ctx.resilient_parsing:
            ctx.fail(unknown_command(word, self.list_commands(ctx)))
        name, command, rest = super().resolve_command(ctx, args)
        point = plugins().get(args[0])
        if point is None or args[0] in self.commands:
            return name, command, rest
        loaded = load(point)
        loaded.name = name
        return name, loaded, rest
