"""Each image carries the members and packages that its program imports, and no others.

The imports of a program are found in its source text. A program cannot start without those at the
top of modules; others stand inside functions.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from tidemill.manifests.inventory import (
    IMAGES,
    LAYERS,
    WHOLE,
    Contents,
    closure,
    contents_of,
    layers_of,
    locked,
    members_of,
)

ROOT = Path(__file__).resolve().parents[3]
LOCK = locked((ROOT / "requirements.lock").read_text())
SERVICES = [each for each in IMAGES if each != WHOLE]
ELSEWHERE = {"pyspark", "pandas", "py4j", "duckdb"}
"""Packages of bulk jobs and of SQL, which run in the image of everything."""

LEFT_OUT = {
    "ingest": {"tidemill-kubernetes", "kubernetes", "numba", "llvmlite"},
    "remap": {"tidemill-kubernetes", "kubernetes", "numba", "llvmlite"},
    "reclock": {"numba", "llvmlite", "pyspark"},
    "compute": {"numba", "llvmlite", "pyspark"},
    "compaction": {"numba", "llvmlite", "pyspark"},
    "query": {
        "tidemill-kubernetes",
        "kubernetes",
        "numba",
        "llvmlite",
        "duckdb",
        "ipython",
        "pyspark",
    },
    "operator": set[str](),
}
"""Imports inside functions that an image does not carry: no program of it comes to them.

Only services of jobs launch pods (`kubernetes`). Loops are ready, and no image compiles one.
`tidemill sql` is in the whole. So are jobs of Spark (pyspark): their tasks ask for their place,
and the data source of the client is registered there.
"""

BLOCKED = """
import importlib, sys
absent = set(sys.argv[1].split())

class Absent:
    def find_spec(self, name, path=None, target=None):
        parts = name.split(".")
        if {parts[0], ".".join(parts[:2])} & absent:
            raise ModuleNotFoundError(f"{name} is not in the image", name=name)

sys.meta_path.insert(0, Absent())
for module in sys.argv[3:]:
    importlib.import_module(module)
exec(sys.argv[2])
print("imported")
"""

READY = """
import types
loops = sys.modules["tidemill.ready_loops"] = types.ModuleType("tidemill.ready_loops")
loops.runs_here = lambda: True
loops.take = lambda module, name, digest, other: lambda *arguments: other(*arguments)
"""
"""Loops are there, as in the wheel of the image; no program calls one before it has work."""

DECODED = """
from tidemill.runtime.formats import Column, JsonFormat, RowDecoder
decoder = RowDecoder([Column("n", "int")], JsonFormat())
rows, letters = decoder.decode([0] * 1_000, range(1_000), [b'{"n": 1}'] * 1_000)
assert (rows.num_rows, letters.num_rows) == (1_000, 0)
"""
"""A batch of plain records becomes rows."""
MERGED = """
import pyarrow as pa
from tidemill.arrangement.updates import consolidate, stamp
rows = consolidate(stamp(pa.table({"t": [f"t{at % 700}" for at in range(2_000)]}), 3))
assert (rows.num_rows, rows["t"][0].as_py(), rows["_diff"][0].as_py()) == (700, "t0", 3)
"""
"""Updates are sorted and added up."""
PLANNED = f"""
from pathlib import Path
from tidemill.catalog.catalog import Catalog
from tidemill.catalog.store import Stored
from tidemill.runtime.resources import load_resources
catalog = Catalog()
for name in ("sources", "views"):
    text = Path({str(ROOT / "examples/flights/resources")!r}, f"{{name}}.yaml").read_text()
    views = [catalog.plan(Stored(each, 0)) for each in load_resources(text, name)]
assert all(view.outputs for view in views)
"""
"""The catalog is read, views among what it has."""
DOES = {"ingest": PLANNED + DECODED, "remap": PLANNED, "compaction": PLANNED + MERGED}


@cache
def contents() -> dict[str, Contents]:
    """Members and packages of each image, for the process that needs them."""
    return contents_of(ROOT)


@cache
def sources() -> dict[str, tuple[str, Path]]:
    """Member and file of every module of a member."""
    found = {}
    for name, member in members_of(ROOT).items():
        source = ROOT / member.folder / "src"
        for file in source.rglob("*.py"):
            parts = file.relative_to(source).with_suffix("").parts
            found[".".join(p for p in parts if p != "__init__")] = name, file
    return found


@cache
def imports(module: str) -> list[tuple[str, bool]]:
    """(name, whether inside a function) of each import of a module that runs."""

    def of(node: ast.AST, inside: bool) -> Iterator[tuple[str, bool]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
                continue
            if isinstance(child, ast.Import):
                yield from ((each.name, inside) for each in child.names)
            elif isinstance(child, ast.ImportFrom) and child.module:
                yield child.module, inside
                yield from ((f"{child.module}.{each.name}", inside) for each in child.names)
            yield from of(
                child, inside or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            )

    return list(of(ast.parse(sources()[module][1].read_text()), False))


@cache
def distributions() -> dict[str, set[str]]:
    """Distributions by the package that they bring."""
    return {top: {canonicalize_name(d) for d in ds} for top, ds in packages_distributions().items()}


def reached(modules: tuple[str, ...], inside: bool) -> tuple[set[str], set[str]]:
    """Members and distributions that modules import, those inside functions as well if asked."""
    members: set[str] = set()
    others: set[str] = set()
    seen: set[str] = set()
    open_ = list(modules)
    while open_:
        name = open_.pop()
        if name in seen:
            continue
        seen.add(name)
        if name not in sources():
            others |= distributions().get(name.partition(".")[0], set())
            continue
        members.add(sources()[name][0])
        open_ += [each for each, within in imports(name) if inside or not within]
        if "." in name:
            open_.append(name.rpartition(".")[0])
    ours = set(members_of(ROOT))
    return members, others - ours


def modules_of(image: str) -> tuple[str, ...]:
    """Modules that a process of the image begins with."""
    made = {"query": ("tidemill.client.command", "tidemill.host.fsck_command")}.get(image, ())
    return (f"tidemill_{image}.__main__", *made)


@pytest.mark.parametrize("image", SERVICES)
def test_an_image_carries_no_member_that_its_program_does_not_import(image: str) -> None:
    members, _ = reached(modules_of(image), inside=True)
    assert set(contents()[image].members) <= members


@pytest.mark.parametrize("image", SERVICES)
def test_an_image_carries_no_package_that_its_program_does_not_import(image: str) -> None:
    _, imported = reached(modules_of(image), inside=True)
    # cramjam is aiokafka's: compressed batches of records.
    wanted = {*imported, "cramjam"} if "aiokafka" in imported else imported
    named = {each for each in wanted if each in LOCK} - ELSEWHERE
    assert set(contents()[image].packages) <= closure(sorted(named), LOCK)


@pytest.mark.parametrize("image", SERVICES)
def test_an_image_carries_everything_that_its_program_starts_with(image: str) -> None:
    members, imported = reached(modules_of(image), inside=False)
    assert members <= set(contents()[image].members)
    direct = {each for each in imported if each in LOCK}
    # A namespace names all of its distributions.
    namespaces = distributions()["google"]
    assert direct - namespaces <= set(contents()[image].packages)


@pytest.mark.parametrize("image", SERVICES)
def test_an_image_lacks_no_import_of_a_function_but_those_that_are_named(image: str) -> None:
    members, imported = reached(modules_of(image), inside=True)
    wanted = members | {each for each in imported if each in LOCK} - distributions()["google"]
    carried = contents()[image]
    assert wanted - {*carried.members, *carried.packages} == LEFT_OUT[image]


@pytest.mark.parametrize("image", SERVICES)
def test_a_program_starts_where_nothing_else_is_installed_and_ingest_decodes(image: str) -> None:
    carried = set(contents()[image].packages)
    tops = {top for top, names in distributions().items() if not names & carried}
    tops -= {"tidemill"}
    for module, (member, _) in sources().items():
        if member not in contents()[image].members:
            parts = module.split(".")
            tops.add(".".join(parts[:2]) if parts[0] == "tidemill" else parts[0])
    tops -= {"tidemill", "_pytest", "pytest", "__pycache__"}
    does = DOES.get(image, "")
    # Ingest has other decoders, which serve where a wheel has no loops.
    blocked = BLOCKED.replace("sys.meta_path", READY + "sys.meta_path") if not does else BLOCKED
    command = [sys.executable, "-c", blocked, " ".join(sorted(tops)), does, *modules_of(image)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "imported\n", done.stderr


def test_a_package_that_is_not_installed_would_be_missed() -> None:
    command = [sys.executable, "-c", BLOCKED, "grpc", "", "tidemill_remap.__main__"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "grpc is not in the image" in done.stderr


def test_programs_that_evaluate_nothing_carry_no_engine_and_no_job() -> None:
    heavy = {"numba", "llvmlite", "duckdb", "pandas", "pyspark"}
    for image in SERVICES:
        assert not heavy & set(contents()[image].packages), image
    assert heavy - {"numba", "llvmlite"} <= set(contents()[WHOLE].packages)
    for image in SERVICES:
        assert not ELSEWHERE & set(contents()[image].packages), image


def test_programs_that_launch_no_jobs_do_not_carry_the_client_of_clusters() -> None:
    carrying = {each for each in SERVICES if "kubernetes" in contents()[each].packages}
    assert carrying == {"reclock", "compute", "compaction", "operator"}


def test_an_image_installs_exactly_what_it_carries() -> None:
    lists = layers_of(contents())
    for image, carried in contents().items():
        below = [layer for layer, images in LAYERS.items() if image in images]
        installed = [name for each in (*below, image) for name in lists[each]]
        assert sorted(installed) == list(carried.packages)
        assert len(installed) == len(set(installed))


def test_each_image_is_built_over_the_layers_of_its_packages() -> None:
    built = (ROOT / "services/server/Dockerfile").read_text()
    over = {
        line.split()[3]: line.split()[1] for line in built.splitlines() if line.startswith("FROM ")
    }
    for image in IMAGES:
        below = [layer for layer, images in LAYERS.items() if image in images]
        chain = []
        stage = over[image]
        while stage in over:
            chain.append(stage)
            stage = over[stage]
        assert [stage for stage in reversed(chain) if stage in LAYERS] == below, image
        assert "ready" not in chain, image  # it has the compiler


def test_a_service_takes_its_columns_from_the_heap_that_it_gives_back(tmp_path: Path) -> None:
    """The pool of Arrow is chosen as Arrow is loaded, and keeps megabytes at rest."""
    program = "import pyarrow; print(pyarrow.default_memory_pool().backend_name)"
    stub = tmp_path / "python"
    stub.write_text(f"#!/bin/sh\nexec {sys.executable} -c '{program}'\n")
    stub.chmod(0o755)
    done = subprocess.run(
        ["bash", str(ROOT / "services/server/service.sh"), "remap", "up"],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "system\n"
