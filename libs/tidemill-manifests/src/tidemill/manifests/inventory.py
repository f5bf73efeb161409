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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

SPARK = ("pyspark", "pandas")
"""Requirements of Spark jobs alone."""

NOT_SHIPPED = ("tidemill-testkit", "tidemill-manifests", "tidemill-flights")
"""Members that are in no image."""

IMAGE = {
    "python_version": "3.11", "python_full_version": "3.11.2", "sys_platform": "linux",
    "platform_system": "Linux", "platform_machine": "x86_64", "os_name": "posix",
    "implementation_name": "cpython", "platform_python_implementation": "CPython",
}  # fmt: skip
"""Environment of the images, as markers of requirements ask for it: Debian 12."""

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


def closure(wanted: Iterable[str], lock: Mapping[str, tuple[str, str]]) -> set[str]:
    """The names of what requirements bring, and all that needs.

    Raises: KeyError for what is not locked.
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
        if name not in lock:
            raise KeyError(f"{name} is needed by an image and not locked: make lock")
        installed = _installed(name)
        for text in [] if installed is None else installed.requires or ():
            each = Requirement(text)
            marker = each.marker
            if marker is None or any(marker.evaluate({**IMAGE, "extra": e}) for e in ("", *extras)):
                open_.append((canonicalize_name(each.name), frozenset(each.extras)))
    return found


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


def packages_of(root: Path) -> tuple[list[Package], list[Package]]:
    """Packages of services, and packages of Spark jobs alone. Raises: KeyError."""
    wanted: set[str] = set()
    for member in root.glob("*/*/pyproject.toml"):
        project = tomllib.loads(member.read_text())["project"]
        if project["name"] not in NOT_SHIPPED:
            wanted |= set(project["dependencies"])
    names = {each: canonicalize_name(Requirement(each).name) for each in wanted}
    others = {each for each, name in names.items() if not name.startswith("tidemill-")}
    lock = locked((root / "requirements.lock").read_text())
    jobs = {each for each in others if names[each] in SPARK}
    services = closure(others - jobs, lock)
    spark = closure(jobs, lock) - services

    def packages(found: set[str]) -> list[Package]:
        return [Package(name, *lock[name], licence_of(name)) for name in sorted(found)]

    return packages(services), packages(spark)


def jars_of(root: Path) -> list[tuple[str, str]]:
    """(name, sha256) of the jars of the image beside those of pyspark."""
    lines = (root / "infra/spark/jars.sha256").read_text().splitlines()
    return [(name, digest) for digest, name in (line.split() for line in lines)]


def requirements(packages: list[Package]) -> str:
    """A list that pip takes with --require-hashes and --no-deps."""
    head = "# Of requirements.lock, for the images. Written by: make notice\n"
    return head + "".join(f"{each.lines}\n" for each in packages)


def bill(packages: list[Package], jars: list[tuple[str, str]]) -> str:
    """The bill of materials, CycloneDX 1.6; hashes of packages are in the lists beside it."""
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
        "metadata": {"component": {"type": "container", "name": "tidemill"}},
        "components": components,
    }  # fmt: skip
    return json.dumps(document, indent=1) + "\n"


HEAD = """Tidemill
Copyright the authors of Tidemill. Licensed under the Apache License, Version 2.0: see LICENSE.

The images of Tidemill hold the following works of others, unchanged but for jars of pyspark that are left out, each under its own licence. The text of a licence, and the notices that
its work asks to keep, are in the image: of a package of Python in its folder below dist-packages, NAME-VERSION.dist-info; of pyspark, which
holds jars of others, in its jars; of a package of Debian, Java among them (GPL-2.0 with the Classpath exception), in /usr/share/doc/NAME/copyright.

"""


def notice(services: list[Package], spark: list[Package], jars: list[tuple[str, str]]) -> str:
    """Whose works the images hold, and under which licence."""
    parts = [HEAD, "In every image:\n\n", *map(_line, services)]
    parts += ["\nIn the image of jobs, tidemill, besides:\n\n", *map(_line, spark)]
    parts += [f"  {name}: Apache-2.0\n" for name, _ in jars]
    return "".join(parts)


def _line(package: Package) -> str:
    return f"  {package.name} {package.version}: {package.licence}\n"


def generated(root: Path) -> dict[str, str]:
    """Path below the root → text, for every file that this page makes."""
    services, spark = packages_of(root)
    jars = jars_of(root)
    lock = locked((root / "requirements.lock").read_text())
    build = [Package(name, *lock[name], "") for name in sorted(closure(["hatchling"], lock))]
    return {
        "NOTICE": notice(services, spark, jars),
        "services/server/sbom.cdx.json": bill([*services, *spark], jars),
        "services/server/build.lock": requirements(build),
        "services/server/services.lock": requirements(services),
        "services/server/spark.lock": requirements(spark),
    }


def main() -> None:
    """Write every file below the root that the command names."""
    root = Path(sys.argv[1])
    for path, text in generated(root).items():
        (root / path).write_text(text)


if __name__ == "__main__":
    main()
