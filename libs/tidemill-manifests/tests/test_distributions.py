"""Distributions hold what they need, declare what they import, and work where no source tree is.

A virtual environment has the built wheels, and links to the packages that their metadata require.
It reaches neither the members of the workspace nor other packages.
"""

from __future__ import annotations

import ast
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import time
import tomllib
import venv
import zipfile
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping
from functools import cache
from hashlib import sha256
from importlib import import_module
from importlib.metadata import distribution, packages_distributions
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tidemill.host.warming import ahead
from tidemill.manifests.inventory import LOOPED, closure, locked, members_of, without_compiler
from tidemill.testkit.ready_loops import ready_loops

ROOT = Path(__file__).resolve().parents[3]
LOCK = locked((ROOT / "requirements.lock").read_text())
MEMBERS = members_of(ROOT)
COMPILER = {"numba", "llvmlite"}
HEAVY = {"pyspark", "pandas", "matplotlib", "duckdb", "kubernetes", "obstore", "pytest", *COMPILER}
"""Packages that an installation without extras does not fetch."""
PATIENCE_S = 240.0
CHANGED = "tidemill/arrangement/interval_updates/merging.py"
"""The module of which an installation with a compiler has other loops than the ready ones."""
COMPILED_ANEW = "merging._append_new-"
"""Beginning of the file of a loop that such an installation compiles itself."""

VIEW = """
apiVersion: tidemill.dev/v1alpha1
kind: Table
metadata: {name: flights}
spec: {columns: [{name: plane, type: text}, {name: delay, type: int}], retain: all}
---
apiVersion: tidemill.dev/v1alpha1
kind: View
metadata: {name: delays}
spec: {retain: all, program: "late(plane: p, delay: d) := flights(plane: p, delay: d) if d > 30;"}
"""
CASE = """
- id: "copy"
  kind: "pointwise"
  covers: "a row is present from its insert to its delete"
  program: "copy(x) := r(x);"
  updates: {r: [[[1], 10, 1], [[1], 20, -1]]}
  upper: 100
  expect: {copy: ["[10,20) copy(1)"]}
"""
BUILT = """
import os, sys, tarfile
from hatchling import build

scratch = os.getcwd()
for folder in sys.argv[2:]:
    os.chdir(folder)
    name = build.build_sdist(scratch)
    with tarfile.open(f"{scratch}/{name}") as packed:
        packed.extractall(scratch, filter="data")
    os.chdir(f"{scratch}/{name.removesuffix('.tar.gz')}")
    build.build_wheel(sys.argv[1])
"""
"""A program that writes the wheel of each folder of a member into the folder named first."""


def imports_of(file: Path) -> Iterator[str]:
    """Modules that a file imports anywhere, but for types alone."""

    def of(node: ast.AST) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
                continue
            if isinstance(child, ast.Import):
                yield from (each.name for each in child.names)
            elif isinstance(child, ast.ImportFrom) and child.module:
                yield child.module
                yield from (f"{child.module}.{each.name}" for each in child.names)
            yield from of(child)

    yield from of(ast.parse(file.read_text()))


def homes() -> dict[str, str]:
    """Member by the package or module that it brings: `tidemill.time`, `tidemill_query`."""
    found = {}
    for name, member in MEMBERS.items():
        for top in (ROOT / member.folder).glob("src/*"):
            inner = top.glob("*/") if top.name == "tidemill" else [top]
            found.update({".".join(p.relative_to(top.parent).parts): name for p in inner})
    return found


@cache
def brought_here() -> Mapping[str, list[str]]:
    """Distributions by the package that they bring: a look at all files that are installed."""
    return packages_distributions()


def undeclared(member: str, source: Path, needs: set[str]) -> set[str]:
    """Distributions that modules below `source` import, and that `needs` does not name."""
    brought, ours = brought_here(), homes()
    found = set()
    for file in source.rglob("*.py"):
        for module in imports_of(file):
            parts = module.split(".")
            home = ours.get(".".join(parts[:2])) or ours.get(parts[0])
            if home is None and parts[0] not in sys.stdlib_module_names:
                names = {canonicalize_name(each) for each in brought.get(parts[0], [])}
                if names and not names & needs:
                    found.add(f"{min(names)} ({file.relative_to(source)})")
            elif home is not None and home not in needs | {member}:
                found.add(f"{home} ({file.relative_to(source)})")
    return found


def declared(member: str) -> set[str]:
    """Names of all requirements of a member, those of its extras as well."""
    lines = [line for lines in MEMBERS[member].needs.values() for line in lines]
    return {canonicalize_name(Requirement(line).name) for line in lines}


@pytest.mark.parametrize("member", sorted(MEMBERS))
def test_a_member_declares_each_distribution_that_it_imports(member: str) -> None:
    source = ROOT / MEMBERS[member].folder / "src"
    assert undeclared(member, source, declared(member)) == set()


def test_an_import_that_is_not_declared_would_be_found(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("import redis\nfrom tidemill.shard import stores\n")
    assert undeclared("tidemill-time", tmp_path, set()) == {
        "redis (bad.py)", "tidemill-shard (bad.py)",
    }  # fmt: skip


def dist() -> Any:
    """The program behind `make dist`."""
    sys.path.insert(0, str(ROOT / "infra"))
    try:
        return import_module("dist")
    finally:
        sys.path.pop(0)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel of each member, built once, each from its sdist as `make dist` does.

    One process builds all of them by the hooks that uv starts four processes a member for.
    """
    out = tmp_path_factory.mktemp("wheels")
    folders = [str(ROOT / member.folder) for member in MEMBERS.values()]
    command = [sys.executable, "-c", BUILT, str(out), *folders]
    scratch = tmp_path_factory.mktemp("sdists")
    subprocess.run(command, cwd=scratch, check=True, timeout=PATIENCE_S, stdout=subprocess.DEVNULL)
    dist().pin_members(out)
    return out


def test_wheels_require_each_other_in_their_own_version(wheels: Path) -> None:
    """Otherwise an upgrade of one leaves ready loops of another version beside it."""
    pinned = 0
    for wheel in wheels.glob("*.whl"):
        with zipfile.ZipFile(wheel) as held:
            (told,) = (each for each in held.namelist() if each.endswith(".dist-info/METADATA"))
            lines = held.read(told).decode().splitlines()
            record = held.read(told.replace("METADATA", "RECORD")).decode()
            listed = dict(each.rsplit(",", 2)[:2] for each in record.splitlines())
            assert set(listed) == set(held.namelist()), wheel.name
            digest = urlsafe_b64encode(sha256(held.read(told)).digest()).decode().rstrip("=")
            assert listed[told] == f"sha256={digest}", wheel.name
        needs = [Requirement(each[15:]) for each in lines if each.startswith("Requires-Dist: ")]
        ours = {str(each.specifier) for each in needs if canonicalize_name(each.name) in MEMBERS}
        assert ours <= {f"=={dist().version()}"}, wheel.name
        pinned += len(ours)
    assert pinned > 10


def test_wheels_hold_every_file_of_their_packages(wheels: Path) -> None:
    """Grammars, schemas and lists among the modules are data that programs read."""
    built = {each.name.split("-")[0] for each in wheels.glob("*.whl")}
    assert built == {name.replace("-", "_") for name in MEMBERS}
    for name, member in MEMBERS.items():
        (wheel,) = wheels.glob(f"{name.replace('-', '_')}-*.whl")
        source = ROOT / member.folder / "src"
        wanted = {
            str(file.relative_to(source))
            for file in source.rglob("*")
            if file.is_file() and "__pycache__" not in file.parts
        }
        with zipfile.ZipFile(wheel) as held:
            assert wanted <= set(held.namelist()), name
            (licence,) = (each for each in held.namelist() if each.endswith("licenses/LICENSE"))
            assert held.read(licence) == (ROOT / "LICENSE").read_bytes(), name


def test_the_extension_of_an_editor_is_packed_with_what_it_requires(tmp_path: Path) -> None:
    """Equal folders give equal bytes; hidden files are left out."""
    folder = tmp_path / "extension"
    shutil.copytree(ROOT / "docs/editors", folder)
    shutil.copy(ROOT / "LICENSE", folder)
    (folder / "node_modules/.bin").mkdir(parents=True)
    (folder / "node_modules/.bin/semver").write_text("")
    package = dist().pack(folder, tmp_path)
    before = package.read_bytes()
    assert dist().pack(folder, tmp_path).read_bytes() == before
    with zipfile.ZipFile(package) as held:
        names = held.namelist()
        told = json.loads(held.read("extension/package.json"))
        manifest = ElementTree.fromstring(held.read("extension.vsixmanifest"))
        kinds = held.read("[Content_Types].xml").decode()
    assert not [each for each in names if "/." in each]
    assert f"extension/{told['main'].removeprefix('./')}" in names
    for file in (told["contributes"]["grammars"][0], told["contributes"]["languages"][0]):
        place = file.get("path") or file["configuration"]
        assert f"extension/{place.removeprefix('./')}" in names
    (identity,) = (each for each in manifest.iter() if each.tag.endswith("Identity"))
    assert (identity.get("Id"), identity.get("Version")) == (told["name"], told["version"])
    for each in names[2:]:
        ending = each.rpartition(".")[2]
        assert f'Extension="{ending}"' in kinds or f'PartName="/{each}"' in kinds, each
    locked_there = json.loads((ROOT / "docs/editors/package-lock.json").read_text())["packages"]
    for name in told["dependencies"]:
        assert locked_there[f"node_modules/{name}"]["integrity"].startswith("sha512-")


SKOPEO = """#!/bin/sh
echo "$@" >>{log}
printf %s "{digest}" >"$4"
"""


def test_images_are_published_by_the_digests_of_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The archive is beside the other files; one that changed, or another digest, is refused."""
    out, layout, log = tmp_path / "dist", tmp_path / "layout", tmp_path / "log"
    out.mkdir()
    layout.mkdir()
    reference = {"org.opencontainers.image.ref.name": "localhost/tidemill-query:9"}
    manifests = [{"digest": "sha256:aa", "annotations": reference}]
    (layout / "index.json").write_text(json.dumps({"manifests": manifests}))
    with tarfile.open(tmp_path / "tidemill_9.tar", "w") as archive:
        archive.add(layout, ".")
    images = dist().kept_images(tmp_path / "tidemill_9.tar", out)
    kept = "images/tidemill_9.tar"
    assert images == {"tidemill-query:9": {"digest": "sha256:aa", "archive": kept}}

    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "skopeo").write_text(SKOPEO.format(log=log, digest="sha256:aa"))
    (tools / "skopeo").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    dist().copied(images, out, "registry.example/x")
    assert log.read_text().endswith("docker://registry.example/x/tidemill-query:9\n")
    (tools / "skopeo").write_text(SKOPEO.format(log=log, digest="sha256:bb"))
    with pytest.raises(SystemExit, match="not that of the index"):
        dist().copied(images, out, "registry.example/x")

    files = {kept: {"sha256": dist().digest_of(out / kept)}}
    (out / "index.json").write_text(json.dumps({"files": files, "images": images}))
    dist().publish(out, "", "")
    (out / kept).write_bytes(b"changed")
    with pytest.raises(SystemExit, match="changed since the index was written"):
        dist().publish(out, "", "")


def linked(name: str, site: Path) -> None:
    """The files of an installed distribution, as links in another folder of packages.

    Compiled modules of these sources are linked as well: to compile them anew takes longer than
    the commands that need them.
    """
    found = distribution(name)
    for file in found.files or []:
        if ".." in file.parts or "__pycache__" in file.parts:
            continue
        place = site / file
        source = Path(str(file.locate()))
        place.parent.mkdir(parents=True, exist_ok=True)
        if not place.exists():
            place.symlink_to(source)
        compiled, kept = source.parent / "__pycache__", place.parent / "__pycache__"
        if source.suffix == ".py" and compiled.exists() and not kept.exists():
            kept.symlink_to(compiled)


@pytest.fixture(scope="module")
def ready(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel with ready loops, which are compiled once while none of them changes."""
    module = ready_loops(ROOT) / "tidemill/ready_loops.abi3.so"
    (wheel,) = wheels.glob("tidemill_arrangement-*.whl")
    return ahead.wheel_with(module, wheel, tmp_path_factory.mktemp("ready"))


class Installed:
    """A virtual environment with what `requirement` brings, and an empty folder beside it.

    With the wheel `ready` it gets no compiler of loops; without, it compiles those of one module.
    """

    def __init__(
        self, place: Path, wheels: Path, requirement: str, ready: Path | None = None
    ) -> None:
        venv.create(place / "venv", symlinks=True)
        self.folder = place / "empty"
        self.folder.mkdir()
        self.home = place / "home"
        self.home.mkdir()
        self._bin = place / "venv/bin"
        (site,) = (place / "venv/lib").glob("python*/site-packages")
        members = dict(MEMBERS)
        if ready:
            members = without_compiler(MEMBERS)
        names = closure([requirement], LOCK, members)
        self.packages = names - set(MEMBERS)
        for name in self.packages:
            linked(name, site)
        ours = [
            ready
            if ready and name == LOOPED
            else next(wheels.glob(f"{name.replace('-', '_')}-[0-9]*.whl"))
            for name in names & set(MEMBERS)
        ]
        command = [
            ROOT / ".tools/uv/bin/uv", "pip", "install", "-q", "--offline", "--no-deps",
            "--python", self._bin / "python", *ours,
        ]  # fmt: skip
        subprocess.run(command, check=True, timeout=PATIENCE_S)
        self._code = site / "tidemill/arrangement/__pycache__/machine-code"
        if not ready:
            self._give_loops(site)

    def _give_loops(self, site: Path) -> None:
        """Copy ready loops, of which one module is another: to compile all of them takes long."""
        shutil.copy(ready_loops(ROOT) / "tidemill/ready_loops.abi3.so", site / "tidemill")
        text = (site / CHANGED).read_text()
        (site / CHANGED).unlink()  # it may be a link to a file of others
        (site / CHANGED).write_text(f"{text}# changed\n")

    def has_compiled(self) -> bool:
        """Whether a loop of the changed module has been compiled here."""
        return any(self._code.glob(f"{COMPILED_ANEW}*"))

    def has_machine_code(self) -> bool:
        """Whether any loop has been compiled here, or was given."""
        return self._code.exists() or (self.home / ".cache/tidemill").exists()

    def environment(self) -> dict[str, str]:
        """A fresh home, no Java, no source tree."""
        kept = {key: os.environ[key] for key in ("LANG", "LC_ALL") if key in os.environ}
        return {**kept, "HOME": str(self.home), "PATH": str(self._bin), "COLUMNS": "200"}

    def start(self, *words: str) -> subprocess.Popen[str]:
        """The command of the installation, in the empty folder."""
        return subprocess.Popen(
            [self._bin / "tidemill", *words], cwd=self.folder, env=self.environment(),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def run(self, *words: str) -> tuple[int, str]:
        """Exit status and what was written."""
        process = self.start(*words)
        written, _ = process.communicate(timeout=PATIENCE_S)
        return process.returncode, written


@pytest.fixture(scope="module")
def installed(wheels: Path, ready: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """`pip install tidemill`, without extras, on a platform whose loops are ready."""
    return Installed(tmp_path_factory.mktemp("plain"), wheels, "tidemill", ready)


def test_an_installation_without_extras_fetches_nothing_heavy(installed: Installed) -> None:
    assert not installed.packages & HEAVY


def test_the_help_names_every_command_that_is_installed(installed: Installed) -> None:
    status, written = installed.run("--help")
    assert status == 0
    assert "cannot be loaded" not in written
    for command in ("up", "check", "eval", "query", "why-not", "fsck"):
        assert re.search(rf"^\s*\W?\s*{command} ", written, re.M), command
    assert "conformance" not in written


def test_an_installed_server_gives_an_exact_answer(installed: Installed) -> None:
    (installed.folder / "delays.yaml").write_text(VIEW)
    server = installed.start("up", "--grpc", "127.0.0.1:0", "--http-port", "0", "-f", "delays.yaml")
    try:
        told = installed.folder / ".tidemill/grpc.address"
        deadline = time.monotonic() + PATIENCE_S
        while not told.exists() or not told.read_text().endswith("\n"):
            assert server.poll() is None, server.communicate()[0]
            assert time.monotonic() < deadline
            time.sleep(0.05)
        address = ("--address", told.read_text().strip())
        row = ("insert", "flights", "--row", '{"plane": "N2", "delay": 45}')
        assert installed.run(*address, *row)[0] == 0
        ask = ("query", "late(p, d)", "--wait", "--format", "json")
        status, written = installed.run(*address, *ask)
        assert (status, json.loads(written)["rows"]) == (0, [{"p": "N2", "d": 45}]), written
        status, written = installed.run(*address, "sql", "select 1")
        assert (status, "pip install 'tidemill[sql]'" in written) == (1, True), written
        assert not installed.has_machine_code()
    finally:
        server.terminate()
        server.communicate(timeout=PATIENCE_S)


def test_an_object_store_is_refused_with_the_extra_that_it_needs(installed: Installed) -> None:
    status, written = installed.run("up", "--dir", "other", "--blob", "s3://bucket/prefix")
    assert status != 0
    assert "obstore is not installed, which object stores need" in written
    assert "pip install 'tidemill[s3]'" in written


def test_installed_conformance_runs_a_case(wheels: Path, tmp_path: Path) -> None:
    whole = Installed(tmp_path, wheels, "tidemill[conformance]")
    (whole.folder / "case.yaml").write_text(CASE)
    (whole.folder / "copy.tidelog").write_text("r(1);\ncopy(x) := r(x);\n")
    status, written = whole.run("eval", "copy.tidelog")
    assert (status, written.splitlines()[0]) == (0, "[-inf,-) copy(1)"), written
    assert whole.has_compiled()
    assert whole.run("conformance", "case.yaml") == (0, "1 passed, 0 failed\n")
    status, written = whole.run("init", "flights")
    assert status == 0, written
    status, written = whole.run("test", "flights")
    *compiling, last = written.splitlines()
    assert (status, last) == (0, "1 passed, 0 failed"), written
    assert all(each.startswith("compiling loops") for each in compiling), written


def test_installed_conformance_needs_no_compiler_where_loops_are_ready(
    wheels: Path, ready: Path, tmp_path: Path
) -> None:
    """Programs of views, by the dataflow: answers as the case files have them."""
    whole = Installed(tmp_path, wheels, "tidemill[conformance]", ready)
    assert not whole.packages & COMPILER
    cases = ROOT / "libs/tidemill-datalog/tests/cases/pointwise.yaml"
    status, written = whole.run("conformance", "--engine", "dataflow", str(cases))
    assert (status, written.endswith(", 0 failed\n")) == (0, True), written
    assert not whole.has_machine_code()


def test_the_wheel_with_ready_loops_holds_what_the_other_one_holds(
    wheels: Path, ready: Path
) -> None:
    (wheel,) = wheels.glob("tidemill_arrangement-*.whl")
    with zipfile.ZipFile(wheel) as plain, zipfile.ZipFile(ready) as held:
        more = set(held.namelist()) - set(plain.namelist())
        told = next(each for each in plain.namelist() if each.endswith("/METADATA"))
        same = {each for each in plain.namelist() if plain.read(each) == held.read(each)}
        before, after = (each.read(told).decode().splitlines() for each in (plain, held))
    assert {each.rpartition("/")[2] for each in more} == {"ready_loops.abi3.so", "LICENSE.numba"}
    changed = {each.rpartition("/")[2] for each in set(plain.namelist()) - same}
    assert changed == {"METADATA", "WHEEL", "RECORD"}
    dropped = set(before) - set(after) - {"License-Expression: Apache-2.0"}
    assert {Requirement(each.partition(": ")[2]).name for each in dropped} == COMPILER
    licence = "License-Expression: Apache-2.0 AND BSD-2-Clause"
    assert set(after) - set(before) == {licence, "License-File: LICENSE.numba"}


def test_no_wheel_with_ready_loops_is_begun_where_something_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
    dist().ready_loops(tmp_path)
    told = capsys.readouterr().out
    assert "a processor that is x86_64 or aarch64" in told
    assert "Python.h" in told
    monkeypatch.undo()
    assert dist().lacking_for_loops() == []


def test_the_bill_of_materials_has_both_wheels_of_the_loops(wheels: Path, ready: Path) -> None:
    shutil.copy(ready, wheels)
    try:
        components = json.loads(dist().materials(wheels))["components"]
    finally:
        (wheels / ready.name).unlink()
    found = [each for each in components if each["name"] == LOOPED]
    hashes = [
        dist().digest_of(each) for each in (*wheels.glob("tidemill_arrangement-*.whl"), ready)
    ]
    assert [each["hashes"][0]["content"] for each in found] == hashes
    assert found[1]["licenses"] == [{"expression": "Apache-2.0 AND BSD-2-Clause"}]
    assert len({each["bom-ref"] for each in components}) == len(components)


def test_extras_are_named_in_the_page_on_installing() -> None:
    extras = tomllib.loads((ROOT / "libs/tidemill/pyproject.toml").read_text())
    page = (ROOT / "docs/how-to/install.md").read_text()
    for extra in extras["project"]["optional-dependencies"]:
        assert f"`{extra}`" in page, extra
