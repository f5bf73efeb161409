"""Functions and lattices of other distributions, found by entry points and checked when loaded.

A program names each with its version, `bits@1`, so it means the same wherever it runs, or does not
run. An installed plugin has no meaning by itself. A loaded plugin stays until the process ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from threading import Thread
from typing import Any

from tidemill.datalog.functions import FUNCTIONS
from tidemill.datalog.lattices import LATTICES
from tidemill.datalog.plugins import (
    PluginFunction,
    PluginLattice,
    check_function,
    check_lattice,
    function_of,
    lattice_of,
)
from tidemill.datalog.vocabulary import STANDARD, Named, Vocabulary
from tidemill.errors import UsageError
from tidemill.runtime.rng import new_rng

LATTICE_GROUP = "tidemill.lattices"
FUNCTION_GROUP = "tidemill.functions"
_WORDS = {LATTICE_GROUP: "lattice", FUNCTION_GROUP: "function"}

LOAD_S = 10.0
"""Seconds that loading a plugin and checking its laws may take; it is refused beyond."""


def vocabulary_of(named: Named, load_s: float = LOAD_S) -> Vocabulary:
    """The lattices and functions that a program with these names may use.

    Loading one plugin may take `load_s` seconds, the check of its laws included. Raises: UsageError
    for a name that no distribution offers, and for a plugin that breaks a law.
    """
    if not named.lattices and not named.functions:
        return STANDARD
    lattices, functions = dict(LATTICES), dict(FUNCTIONS)
    for written in named.lattices:
        name, plugin = _asked(LATTICE_GROUP, written, load_s)
        lattices[name] = lattice_of(name, plugin)
    for written in named.functions:
        name, plugin = _asked(FUNCTION_GROUP, written, load_s)
        functions[name] = function_of(name, plugin)
    return Vocabulary(functions, lattices, named)


def _asked(group: str, written: str, load_s: float) -> tuple[str, Any]:
    """The plugin that `[distribution:]name@version` names."""
    word = _WORDS[group]
    place, _, wanted = written.rpartition(":")
    name, _, version = wanted.partition("@")
    points = [
        each
        for each in entry_points(group=group, name=name)
        if not place or _distribution(each) == place
    ]
    if not points:
        raise _refused(
            f"no {word} {place + ':' if place else ''}{name} is installed: install the distribution "
            f"that offers it wherever the program runs; installed are {_installed(group)}"
        )
    if len(points) > 1:
        offered = ", ".join(f"{_distribution(each)}:{name}" for each in points)
        raise _refused(f"the {word} {name} is offered more than once: write one of {offered}")
    plugin = _loaded(points[0], load_s)
    if isinstance(plugin, UsageError):
        raise _refused(str(plugin))
    if plugin.version != version:
        found = f"{name}@{plugin.version} of {_distribution(points[0])}"
        if not version:
            raise _refused(
                f"the {word} {name} is named without its version: write {found[: found.index(' ')]}"
            )
        raise _refused(
            f"the {word} {name}@{version} is not installed, but {found}: install the version that is "
            "named, or delete the view and apply it anew with the other one"
        )
    return name, plugin


@cache
def _loaded(point: EntryPoint, load_s: float) -> Any:
    """The plugin of an entry point, once its laws have held, or why it is refused until the process
    ends.
    """
    outcome: list[Any] = []
    work = Thread(target=lambda: outcome.append(_tried(point)), daemon=True)
    work.start()
    work.join(load_s)
    late = (
        f"{_told(point)} was not loaded and checked within {load_s:g} s (limits.plugin_load_s): mend "
        "it, or allow more, and start again"
    )
    return outcome[0] if outcome else _refused(late)


def _tried(point: EntryPoint) -> Any:
    """The plugin, or why it is refused."""
    try:
        plugin = point.load()
        if point.group == LATTICE_GROUP and isinstance(plugin, PluginLattice):
            check_lattice(point.name, plugin, new_rng(0))
        elif point.group == FUNCTION_GROUP and isinstance(plugin, PluginFunction):
            check_function(point.name, plugin, new_rng(0))
        else:
            return _refused(
                f"{_told(point)} is a {type(plugin).__name__}, not a plugin of its group"
            )
    except UsageError as error:
        return error
    except Exception as error:  # code of others: whatever it raises, it is refused and nothing else
        return _refused(f"{_told(point)} cannot be loaded: {type(error).__name__}: {error}")
    return plugin


def _told(point: EntryPoint) -> str:
    return f"{_WORDS[point.group]} {point.name} of {_distribution(point)} ({point.value})"


def _distribution(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "no distribution"


def _installed(group: str) -> str:
    """The plugins of a group in words, each with the distribution that offers it; none is
    loaded.
    """
    points: Iterable[EntryPoint] = entry_points(group=group)
    return ", ".join(sorted(f"{p.name} ({_distribution(p)})" for p in points)) or "none"


def _refused(message: str) -> UsageError:
    return UsageError(message, reason="Plugin")
