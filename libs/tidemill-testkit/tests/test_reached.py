"""Each module of the product is reached from an entry point, or is an argued exception."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SOURCES = ("libs/*/src", "services/*/src", "examples/*/src")
APART = ("tidemill.testkit", "tidemill_protos")
"""Code for tests, and generated code."""
EXCEPTIONS: Mapping[str, str] = {
    "tidemill.manifests.inventory": "`make notice`, `make lock` and `make dist` run it",
    "tidemill.shard.stores_memory": "the stores that every other store is compared with",
    "tidemill.time.advancing": "compaction in any lattice, for batches that users supply",
    "tidemill.arrangement.trace.imports": "the surface of arrangements for users: decision 0009",
}
"""Modules that no import reaches, each with the reason why it is there."""
NAMED = re.compile(r"(tidemill\w*(?:\.\w+)+)(?::\w+)?")
"""A module by its name in a text: a Spark job, a command, a module to be loaded later."""

Binding = tuple[str, str | None, str | None]
"""A module, the name imported of it (None: itself), and the name that is bound here."""


def modules_of(root: Path) -> dict[str, Path]:
    """All modules of the product by name."""
    found = {}
    for pattern in SOURCES:
        for source in root.glob(pattern):
            for file in source.rglob("*.py"):
                parts = file.relative_to(source).with_suffix("").parts
                name = ".".join(parts).removesuffix(".__init__")
                if not any(name == each or name.startswith(f"{each}.") for each in APART):
                    found[name] = file
    return found


def bindings_of(file: Path) -> Iterator[Binding]:
    """Imports of a module, also inside functions; not those for types alone."""
    tree = ast.parse(file.read_text())
    typed = set[ast.AST]()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            typed.update(inner for inner in ast.walk(node) if inner is not node)
    for node in ast.walk(tree):
        if node in typed:
            continue
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, None, None
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                yield node.module, alias.name, alias.asname or alias.name
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            named = NAMED.fullmatch(node.value)
            if named is not None:
                yield named[1], None, None


class Imports:
    """Which modules a module needs; a package is needed for the names that are taken of it only."""

    def __init__(self, modules: Mapping[str, Path]) -> None:
        self._modules = modules
        self._bindings = {name: list(bindings_of(file)) for name, file in modules.items()}

    def of(self, module: str) -> set[str]:
        """The modules that one module needs itself."""
        return {m for each in self._bindings[module] for m in self._meant(each[0], each[1])}

    def reached(self, roots: set[str]) -> set[str]:
        """All modules that some modules need, with these."""
        found, left = set(roots), list(roots)
        while left:
            fresh = self.of(left.pop()) - found
            found |= fresh
            left += fresh
        return found

    def _meant(self, module: str, name: str | None) -> set[str]:
        if name is not None and f"{module}.{name}" in self._modules:
            return {f"{module}.{name}"}
        file = self._modules.get(module)
        if file is None:
            return set()
        if file.name != "__init__.py":
            return {module}
        for source, taken, bound in self._bindings[module]:
            if bound == name and name is not None:
                return self._meant(source, taken)
        everything = (self._meant(each[0], each[1]) for each in self._bindings[module])
        return {module}.union(*everything)


def entry_points(modules: Mapping[str, Path], root: Path) -> set[str]:
    """Modules that are run, or that a command is in."""
    found = {name for name in modules if name.endswith(".__main__")}
    for file in root.glob("*/*/pyproject.toml"):
        project = tomllib.loads(file.read_text())["project"]
        groups = [project.get("scripts", {}), *project.get("entry-points", {}).values()]
        found |= {value.split(":")[0] for group in groups for value in group.values()}
    return found & set(modules)


def unreached(root: Path) -> set[str]:
    """Modules that no entry point reaches; packages that only gather names are not looked at."""
    modules = modules_of(root)
    reached = Imports(modules).reached(entry_points(modules, root))
    return {name for name, file in modules.items() if file.name != "__init__.py"} - reached


def test_every_module_is_reached_from_an_entry_point() -> None:
    assert unreached(ROOT) == set(EXCEPTIONS)


@pytest.mark.parametrize(
    ("text", "reached"),
    [
        ("from tidemill.a import one\n", {"tidemill.a.first"}),
        ("def later():\n    from tidemill.a.second import two\n", {"tidemill.a.second"}),
        ('JOB = "tidemill.a.second"\n', {"tidemill.a.second"}),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import tidemill.a.first\n", set()),
        ("import tidemill.a\n", {"tidemill.a.first", "tidemill.a.second"}),
    ],
)  # fmt: skip
def test_an_import_reaches_what_it_takes(text: str, reached: set[str], tmp_path: Path) -> None:
    """A planted tree: a package that gathers names of two modules, and one that is run."""
    source = tmp_path / "libs/x/src/tidemill"
    (source / "a").mkdir(parents=True)
    gathered = "from tidemill.a.first import one\nfrom tidemill.a.second import two\n"
    (source / "a/__init__.py").write_text(gathered)
    (source / "a/first.py").write_text("one = 1\n")
    (source / "a/second.py").write_text("two = 2\n")
    (source / "__main__.py").write_text(text)
    assert {"tidemill.a.first", "tidemill.a.second"} - unreached(tmp_path) == reached
