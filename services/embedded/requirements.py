"""Lists for the images, from the members and the lock in this folder: requirements.py FOLDER.

services.txt is what services need, spark.txt what only jobs of Spark need, constraints.txt the versions of all.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

SPARK = ("pyspark", "pandas")
NOT_IN_IMAGES = ("matplotlib",)
"""The demo's plot; the demo runs in a checkout."""

_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_PINNED = re.compile(r"^([A-Za-z0-9].*[^ ]) *\\$", re.MULTILINE)


def needed_by(members: list[Path]) -> list[str]:
    """What members require from others than each other, once each."""
    found: set[str] = set()
    for member in members:
        found |= set(tomllib.loads(member.read_text())["project"]["dependencies"])
    return sorted(each for each in found if not each.startswith("tidemill-"))


def of(names: tuple[str, ...], requirements: list[str]) -> list[str]:
    """The requirements of packages with these names."""
    return [each for each in requirements if _NAME.match(each)[0] in names]  # type: ignore[index]  # each begins with a name


folder = Path(sys.argv[1])
folder.mkdir()
requirements = needed_by(list(Path().glob("*/*/pyproject.toml")))
spark = of(SPARK, requirements)
apart = {*spark, *of(NOT_IN_IMAGES, requirements)}
lists = {
    "services.txt": [each for each in requirements if each not in apart],
    "spark.txt": spark,
    "constraints.txt": _PINNED.findall(Path("requirements.lock").read_text()),
}
for name, lines in lists.items():
    (folder / name).write_text("".join(f"{line}\n" for line in lines))
