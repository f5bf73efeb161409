"""Inventory of the images: requirements by hash, a bill of materials, and a notice of licences.

    python -m tidemill.manifests.inventory ROOT       # make notice, and at the end of make lock

All these files are made of the lock, the members, the distributions that are installed here, and
the sums of jars.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

WHOLE = "whole"
"""Image of everything: processes with several roles, and jobs of Spark."""

STORES = "tidemill-shard[s3]"
"""Collections of a cluster, which are in object stores."""

IMAGES = {
    "ingest": ("tidemill-ingest", STORES),
    "remap": ("tidemill-remap", STORES),
    "reclock": ("tidemill-reclock-service[pods]", STORES),
    "compute": ("tidemill-compute[pods]", STORES),
    "compaction": ("tidemill-compaction[pods]", STORES),
    "query": ("tidemill-query", "tidemill-client", STORES),
    "operator": ("tidemill-operator",),
    WHOLE: ("tidemill-server[pods,spark,sql]", "tidemill-operator", STORES),
}
"""Members that each image is made for, with extras; it carries these and all that they need."""

LAYERS = {
    "libraries": tuple(IMAGES),
    "services": tuple(each for each in IMAGES if each != "operator"),
}
"""Stages below images: each holds the packages that all of its images carry, and no earlier one."""

IMAGE = {
    "python_version": "3.11", "python_full_version": "3.11.2", "sys_platform": "linux",
    "platform_system": "Linux", "platform_machine": "x86_64", "os_name": "posix",
    "implementation_name": "cpython", "platform_python_implementation": "CPython",
}  # fmt: skip
"""Environment of the images, as markers of requirements ask for it: Debian 12."""

LOOPED = "tidemill-arrangement"
"""Member with loops, which images have ready: a stage of their build has the compiler alone."""

PARTLY = "numba"
"""Package of which ready loops, and so all images, hold parts; it states its licence vaguely."""
PARTLY_LICENCE = "BSD-2-Clause"

_LOCKED = re.compile(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)(?: *; *([^\\]*?))? *\\$")


@dataclass(frozen=True, slots=True)
class Package:
    """One package of an image: as locked, with the lines of the lock."""

    name: str
    version: str
    lines: str
    licence: str

    @property
    def purl(self) -> str:
        """Its name among all packages."""
        return f"pkg:pypi/{self.name}@{self.version}"


def locked(text: str) -> dict[str, tuple[str, str]]:
    """Name → version and lines, of every package of a lock that the Python of the images takes."""
    found: dict[str, tuple[str, str]] = {}
    for block in re.split(r"\n(?=[A-Za-z0-9])", text):
        first = block.partition("\n")[0]
        match = _LOCKED.match(first)
        if match and (match[3] is None or Marker(match[3]).evaluate(IMAGE)):
            head = f"{match[1]}=={match[2]} \\"
            found[canonicalize_name(match[1])] = match[2], f"{head}{block[len(first) :]}".rstrip()
    return found


@dataclass(frozen=True, slots=True)
class Member:
    """One member of the workspace: its folder, and requirements by extra, "" for those of all."""

    folder: str
    needs: Mapping[str, Sequence[str]]

    def required(self, extras: Iterable[str]) -> list[str]:
        """Requirements with these extras. Raises: KeyError for an extra that it does not have."""
        return [each for extra in ("", *sorted(extras)) for each in self.needs[extra]]


def members_of(root: Path) -> dict[str, Member]:
    """Every member of the workspace, by name."""
    found = {}
    for file in root.glob("*/*/pyproject.toml"):
        project = tomllib.loads(file.read_text())["project"]
        needs = {"": project["dependencies"], **project.get("optional-dependencies", {})}
        found[project["name"]] = Member(str(file.parent.relative_to(root)), needs)
    return found


def without_compiler(members: Mapping[str, Member]) -> dict[str, Member]:
    """The members where loops are ready."""
    needs = {**members[LOOPED].needs, "kernels": ()}
    return {**members, LOOPED: Member(members[LOOPED].folder, needs)}


def closure(
    wanted: Iterable[str],
    lock: Mapping[str, tuple[str, str]],
    members: Mapping[str, Member] = {},
) -> set[str]:
    """The names of members and packages that requirements bring, and all that those need.

    Raises: KeyError for a package that is not locked.
    """
    found: set[str] = set()
    open_: list[tuple[str, frozenset[str]]] = [
        (canonicalize_name(each.name), frozenset(each.extras)) for each in map(Requirement, wanted)
    ]
    seen: set[tuple[str, frozenset[str]]] = set()
    while open_:
        name, extras = open_.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        found.add(name)
        if name not in members and name not in lock:
            raise KeyError(f"{name} is needed by an image and not locked: make lock")
        for text in members[name].required(extras) if name in members else _required(name):
            each = Requirement(text)
            marker = each.marker
            if marker is None or any(marker.evaluate({**IMAGE, "extra": e}) for e in ("", *extras)):
                open_.append((canonicalize_name(each.name), frozenset(each.extras)))
    return found


def _required(name: str) -> Sequence[str]:
    installed = _installed(name)
    return [] if installed is None else installed.requires or ()


def _installed(name: str) -> Distribution | None:
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


def licence_of(name: str) -> str:
    """The licence that a package states: an expression, its classifiers, or a short text."""
    installed = _installed(name)
    if installed is None:
        return "not stated"
    metadata = installed.metadata
    stated = metadata.get_all("License-Expression") or []
    classifiers = [
        each.rpartition(" :: ")[2]
        for each in metadata.get_all("Classifier") or []
        if each.startswith("License :: ")
    ]
    if not stated and classifiers and classifiers != ["OSI Approved"]:
        stated = [", ".join(sorted(set(classifiers)))]
    found = [*stated, *(metadata.get_all("License") or []), "in the package"][0].strip()
    return found if "\n" not in found and len(found) < 80 else "in the package"


@dataclass(frozen=True, slots=True)
class Contents:
    """Members and packages of one image, by name, ascending."""

    members: tuple[str, ...]
    packages: tuple[str, ...]


def contents_of(root: Path) -> dict[str, Contents]:
    """Members and packages of each image. Raises: KeyError for a package that is not locked."""
    members = without_compiler(members_of(root))
    lock = locked((root / "requirements.lock").read_text())
    found = {}
    for image, made_for in IMAGES.items():
        names = sorted(closure(made_for, lock, members))
        found[image] = Contents(
            tuple(each for each in names if each in members),
            tuple(each for each in names if each not in members),
        )
    return found


def layers_of(contents: Mapping[str, Contents]) -> dict[str, list[str]]:
    """Names of packages by the stage that installs them: a shared one, or an image's own."""
    below: dict[str, set[str]] = {image: set() for image in contents}
    found = {}
    for layer, images in LAYERS.items():
        shared = set.intersection(*(set(contents[each].packages) - below[each] for each in images))
        for image in images:
            below[image] |= shared
        found[layer] = sorted(shared)
    for image, carried in contents.items():
        found[image] = sorted(set(carried.packages) - below[image])
    return found


def jars_of(root: Path) -> list[tuple[str, str]]:
    """(name, sha256) of the jars of the image beside those of pyspark."""
    lines = (root / "infra/spark/jars.sha256").read_text().splitlines()
    return [(name, digest) for digest, name in (line.split() for line in lines)]


def requirements(packages: list[Package]) -> str:
    """A list that pip takes with --require-hashes and --no-deps."""
    head = "# Of requirements.lock, for the images. Written by: make notice\n"
    return head + "".join(f"{each.lines}\n" for each in packages)


def bill(image: str, packages: list[Package], jars: list[tuple[str, str]]) -> str:
    """The bill of materials of an image, CycloneDX 1.6; hashes are in the lists beside it."""
    components: list[dict[str, Any]] = [
        {
            "type": "library", "bom-ref": each.purl, "name": each.name, "version": each.version,
            "purl": each.purl, "licenses": [{"license": {"name": each.licence}}],
        }
        for each in packages
    ]  # fmt: skip
    for name, digest in jars:
        artifact, _, version = name.removesuffix(".jar").rpartition("-")
        components.append(
            {
                "type": "library", "bom-ref": name, "name": artifact, "version": version,
                "hashes": [{"alg": "SHA-256", "content": digest}],
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            }
        )  # fmt: skip
    document = {
        "bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1,
        "metadata": {"component": {"type": "container", "name": _named((image,), 0)}},
        "components": components,
    }  # fmt: skip
    return json.dumps(document, indent=1) + "\n"


HEAD = """Tidemill
Copyright the authors of Tidemill. Licensed under the Apache License, Version 2.0: see LICENSE.

The images of Tidemill hold the following works of others, unchanged but for parts that are left out (tests, headers, Arrow Flight, jars of pyspark), each under its own licence. The text of a licence, and the notices that
its work asks to keep, are in the image: of a package of Python in its folder below dist-packages, NAME-VERSION.dist-info; of pyspark, which
holds jars of others, in its jars; of a package of Debian, Java among them (GPL-2.0 with the Classpath exception), in /usr/share/doc/NAME/copyright.

"""


def notice(
    contents: Mapping[str, Contents],
    packages: Mapping[str, Package],
    jars: list[tuple[str, str]],
    partly: Package,
) -> str:
    """Whose works the images hold, under which licence, and in which images."""
    holders: dict[tuple[str, ...], list[str]] = {}
    for name in sorted(packages):
        images = tuple(each for each, carried in contents.items() if name in carried.packages)
        holders.setdefault(images, []).append(name)
    parts = [HEAD]
    for images in sorted(holders, key=lambda each: (-len(each), each)):
        parts.append(f"In {_named(images, len(contents))}:\n\n")
        parts += [_line(packages[name]) for name in holders[images]]
        if images == tuple(contents):
            parts.append(
                f"  parts of {partly.name} {partly.version}, in ready loops: {partly.licence} "
                f"(licenses/LICENSE.{partly.name} of {LOOPED})\n"
            )
        if images == (WHOLE,):
            parts += [f"  {name}: Apache-2.0\n" for name, _ in jars]
        parts.append("\n")
    return "".join(parts).rstrip("\n") + "\n"


def _named(images: tuple[str, ...], of: int) -> str:
    if len(images) == of:
        return "every image"
    return ", ".join("tidemill" if each == WHOLE else f"tidemill-{each}" for each in images)


def _line(package: Package) -> str:
    return f"  {package.name} {package.version}: {package.licence}\n"


PLACE = "services/server/images"
"""Folder of the lists of images."""


def generated(root: Path) -> dict[str, str]:
    """Path below the root → text, for every file that this page makes."""
    contents, jars = contents_of(root), jars_of(root)
    lock = locked((root / "requirements.lock").read_text())
    names = sorted({name for carried in contents.values() for name in carried.packages})
    packages = {name: Package(name, *lock[name], licence_of(name)) for name in names}
    partly = Package(PARTLY, lock[PARTLY][0], "", PARTLY_LICENCE)
    build = [Package(name, *lock[name], "") for name in sorted(closure(["hatchling"], lock))]
    found = {
        "NOTICE": notice(contents, packages, jars, partly),
        f"{PLACE}/build.lock": requirements(build),
    }
    layers = layers_of(contents)
    compiler = closure([f"{LOOPED}[compiler]"], lock, members_of(root))
    wanted = sorted(
        compiler - members_of(root).keys() - {*layers["libraries"], *layers["services"]}
    )
    found[f"{PLACE}/compiler.lock"] = requirements([Package(n, *lock[n], "") for n in wanted])
    for layer, held in layers.items():
        found[f"{PLACE}/{layer}.lock"] = requirements([packages[name] for name in held])
    for image, carried in contents.items():
        found[f"{PLACE}/{image}.members"] = "".join(f"{name}\n" for name in carried.members)
        found[f"{PLACE}/{image}.cdx.json"] = bill(
            image,
            [*(packages[name] for name in carried.packages), partly],
            jars if image == WHOLE else [],
        )
    return found


def main() -> None:
    """Write every file below the root that the command names."""
    root = Path(sys.argv[1])
    for path, text in generated(root).items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)


if __name__ == "__main__":
    main()
