"""Foreign parts of the images are locked by hash, listed, and named with their licence."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

from tidemill.manifests.inventory import (
    IMAGES,
    LOOPED,
    PARTLY,
    WHOLE,
    Contents,
    Package,
    closure,
    contents_of,
    generated,
    jars_of,
    licence_of,
    locked,
)

ROOT = Path(__file__).resolve().parents[3]
LOCK = locked((ROOT / "requirements.lock").read_text())
BUILT = (ROOT / "services/server/Dockerfile").read_text()
INSTALLED = (ROOT / "services/server/install.sh").read_text()


@cache
def contents() -> dict[str, Contents]:
    """Members and packages of each image, for the process that needs them."""
    return contents_of(ROOT)


def test_the_lists_notice_and_bill_are_those_of_the_lock() -> None:
    for path, text in generated(ROOT).items():
        assert (ROOT / path).read_text() == text, f"{path} is old: make notice"


def test_every_package_of_an_image_has_its_hashes_and_its_licence() -> None:
    names = {each for image in IMAGES if image != WHOLE for each in contents()[image].packages}
    assert {"aiohttp", "pyarrow", "numpy", "yarl"} <= names  # what is named, and what that brings
    assert set(contents()[WHOLE].packages) >= {*names, "pyspark", "py4j", "pandas"}
    assert not names & {"pytest", "hypothesis", "matplotlib", "pyspark", "mypy", "ruff"}
    for name in contents()[WHOLE].packages:
        each = Package(name, *LOCK[name], licence_of(name))
        assert "--hash=sha256:" in each.lines
        assert each.licence not in ("not stated", "in the package"), each.name
        assert not re.search(r"\b(A?GPL|LGPL|SSPL)", each.licence), each.name


def test_of_two_versions_in_the_lock_an_image_takes_that_for_its_python() -> None:
    text = (
        "one==2 ; python_full_version >= '3.12' \\\n    --hash=sha256:2\n"
        "one==1 ; python_full_version < '3.12' \\\n    --hash=sha256:1\n"
    )
    assert locked(text) == {"one": ("1", "one==1 \\\n    --hash=sha256:1")}


def test_what_is_needed_and_not_locked_is_refused() -> None:
    assert closure(["aiohttp"], LOCK) >= {"aiohttp", "yarl", "multidict"}
    with pytest.raises(KeyError, match="yarl is needed by an image and not locked"):
        closure(["aiohttp"], {name: each for name, each in LOCK.items() if name != "yarl"})


@pytest.mark.parametrize("image", IMAGES)
def test_the_bill_of_an_image_names_every_package_and_jar_once(image: str) -> None:
    bill = json.loads((ROOT / f"services/server/images/{image}.cdx.json").read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    jars = [name for name, _ in jars_of(ROOT)] if image == WHOLE else []
    refs = [each["bom-ref"] for each in bill["components"]]
    held = [*contents()[image].packages, PARTLY]  # of the last one parts, in ready loops
    purls = [f"pkg:pypi/{name}@{LOCK[name][0]}" for name in held]
    assert refs == [*purls, *jars]
    assert len(refs) == len(set(refs))


def test_the_notice_names_the_images_of_each_package() -> None:
    text = (ROOT / "NOTICE").read_text()
    parts = dict(re.findall(r"^In (.+):\n\n((?:  .+\n)+)", text, re.MULTILINE))
    assert "  pyarrow " in parts["every image"]
    assert "  pyspark " in parts["tidemill"]
    partly = f"  parts of {PARTLY} {LOCK[PARTLY][0]}, in ready loops: BSD-2-Clause "
    assert partly in parts["every image"]
    assert all(LOOPED in each.members for each in contents().values())
    listed = [line.split()[0] for held in parts.values() for line in held.splitlines()]
    listed.remove("parts")
    jars = [name for name, _ in jars_of(ROOT)]
    assert sorted(e.rstrip(":") for e in listed) == sorted([*contents()[WHOLE].packages, *jars])


def test_the_image_installs_from_the_index_by_hash_alone() -> None:
    commands = re.findall(r"pip install[^&\n]*", BUILT.replace("\\\n", " ") + INSTALLED)
    assert len(commands) == 4  # tools of the build, packages, members, those that compile loops
    for command in commands:
        assert "--no-deps" in command, command
        if "/wheels/*.whl" not in command:  # our own, built from this folder
            assert "--require-hashes" in command, command
    assert "sha256sum --strict --quiet -c jars.sha256" in BUILT
    assert "--require-hashes -r infra/installer.lock" in (ROOT / "infra/setup.sh").read_text()


@pytest.mark.parametrize(
    ("wheel", "told", "status"),
    [
        ("tidemill_host-1-py3-none-any.whl", "0 loops compiled", 0),
        ("tidemill_host-1-py3-none-any.whl", "1 loops compiled", 1),
        ("tidemill_host-1-py3-none-any.whl", "", 1),  # the program failed
        ("tidemill_rpc-1-py3-none-any.whl", "", 0),
    ],
)
def test_an_image_with_the_program_that_warms_loops_has_to_run_it(
    tmp_path: Path, wheel: str, told: str, status: int
) -> None:
    """A program that cannot be imported is no reason to count nothing."""
    (tmp_path / wheel).touch()
    (line,) = (each for each in INSTALLED.splitlines() if "loops compiled" in each)
    script = f"set -eu\npython() {{ [ '{told}' ] && echo '{told}'; }}\n{line}\ntrue\n"
    done = subprocess.run(["bash", "-c", script.replace("/wheels", str(tmp_path))], check=False)
    assert done.returncode == status


def test_no_image_is_built_on_a_base_that_nobody_named() -> None:
    """A tag of a registry may be another image tomorrow: the one who builds states a digest."""
    assert re.findall(r"^ARG BASE_IMAGE.*$", BUILT, re.MULTILINE) == ["ARG BASE_IMAGE"]
    bases = re.findall(r"^FROM (\S+)", BUILT, re.MULTILINE)
    stages = set(re.findall(r"^FROM \S+ AS (\S+)$", BUILT, re.MULTILINE))
    assert set(bases) - stages == {"${BASE_IMAGE}"}


def test_the_jars_that_were_fetched_are_those_that_are_named() -> None:
    folder = ROOT / ".cache/spark/jars"
    assert {each.name for each in folder.iterdir()} == {name for name, _ in jars_of(ROOT)}
    for name, digest in jars_of(ROOT):
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest


@pytest.mark.parametrize(
    ("package", "oldest"), [("aiohttp", "3.13.3"), ("pyarrow", "23.0.1"), ("protobuf", "7.35.1")]
)
def test_members_admit_no_version_with_a_known_hole(package: str, oldest: str) -> None:
    bounds = {
        bound
        for member in ROOT.glob("*/*/pyproject.toml")
        for bound in re.findall(rf'"{package}>=([0-9.]+)', member.read_text())
    }
    assert bounds == {oldest}
