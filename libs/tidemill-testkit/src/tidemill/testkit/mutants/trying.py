"""Running the test of a mutant against a copy of the package that the mutant changes."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from enum import Enum
from pathlib import Path

from tidemill.testkit.mutants.recorded import Mutant, mutated
from tidemill.time import UsageError

TIMEOUT_S = 300.0
_FAILED, _PASSED = 1, 0


class Verdict(Enum):
    """How the test took the change."""

    KILLED = "killed"
    """The test failed, as it should."""

    SURVIVED = "survived"
    """The test passed: the rule is not proved by it."""

    BROKEN = "broken"
    """The test could not be run at all."""


def tried(mutant: Mutant, root: Path, environment: Mapping[str, str]) -> tuple[Verdict, str]:
    """Whether the test of the mutant notices it, and what the test runner printed.

    The checkout is not touched: the changed package is a copy that comes first on the path of a
    process of its own. A test that hangs has noticed. Raises: UsageError for a mutant that does not
    fit the code any more. Cost: one start of the test runner and the test.
    """
    changed = mutated(mutant, (root / mutant.file).read_text())
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        place = _copied(root, mutant.file, Path(folder))
        place.write_text(changed)
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
        try:
            run = subprocess.run(
                [*command, mutant.test],
                cwd=root,
                env={**environment, "PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as expired:
            return Verdict.KILLED, f"no end after {expired.timeout} s"
    verdicts = {_FAILED: Verdict.KILLED, _PASSED: Verdict.SURVIVED}
    return verdicts.get(run.returncode, Verdict.BROKEN), run.stdout


def _copied(root: Path, file: str, folder: Path) -> Path:
    """Copy the package of a file to where imports look first; the place of the file in the copy."""
    member, _, inner = file.partition("/src/")
    parts = Path(inner).parts
    if not member or len(parts) < 2:
        raise UsageError(f"{file} is in no package of the workspace")
    package = Path(*parts[: 2 if parts[0] == "tidemill" else 1])
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(root / member / "src" / package, folder / package, ignore=ignored)
    return folder / inner
