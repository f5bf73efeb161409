"""Running the tests of mutants against copies of the packages that the mutants change."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from pathlib import Path

from tidemill.errors import UsageError
from tidemill.testkit.mutants.forked import PROFILE
from tidemill.testkit.mutants.recorded import Mutant, mutated

TIMEOUT_S = 120
"""For the test of one mutant; one that takes longer has noticed."""
UNCHANGED_S = 1_800
"""For all tests on the code as it is."""
_FAILED, _PASSED = 1, 0
_OPTIONS = [
    "-q", "-x", "-p", "no:cacheprovider", "-W", "ignore:Module already imported",
    f"--hypothesis-profile={PROFILE}",
]  # fmt: skip


class Verdict(Enum):
    """Verdicts of a test about a change."""

    KILLED = "killed"
    """The test failed, as it should."""

    SURVIVED = "survived"
    """The test passed: the rule is not proved by it."""

    BROKEN = "broken"
    """The test could not be run at all."""


class Trial:
    """A place where mutants of one checkout are tried one after the other: see `trial`.

    The checkout is not touched: changed packages are copies that come first on the path of the
    processes that run the tests. Compiled modules are kept from one to the next.
    """

    def __init__(self, root: Path, folder: Path, server: subprocess.Popen[str]) -> None:
        self._root = root
        self._folder = folder
        self._server = server
        self._tried = 0

    def tried(self, mutant: Mutant) -> tuple[Verdict, str]:
        """Whether the test of the mutant notices it, and what the test runner printed.

        A test that hangs has noticed. Raises: UsageError for a mutant that does not fit the code
        any more. Cost: the imports of the test, and the test.
        """
        original = (self._root / mutant.file).read_text()
        changed = mutated(mutant, original)
        place = self._copied(mutant.file)
        kept = place.stat()
        self._tried += 1
        place.write_text(changed)
        os.utime(
            place, (self._tried, self._tried)
        )  # what was compiled of others is not taken for it
        try:
            return self._run([mutant.test], TIMEOUT_S)
        finally:
            place.write_text(original)
            os.utime(place, ns=(kept.st_atime_ns, kept.st_mtime_ns))

    def unchanged(self, tests: Iterable[str]) -> tuple[Verdict, str]:
        """The verdict of these tests about the unchanged checkout, and their output."""
        return self._run(list(tests), UNCHANGED_S)

    def _run(self, tests: list[str], timeout_s: int) -> tuple[Verdict, str]:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        output = self._folder / "output"
        # In a folder of its own, a run does not remove what others of the user have left behind.
        options = [*_OPTIONS, f"--basetemp={self._folder / 'files'}"]
        wanted = {"arguments": [*options, *tests], "output": str(output), "timeout_s": timeout_s}
        self._server.stdin.write(json.dumps(wanted) + "\n")
        self._server.stdin.flush()
        code = json.loads(self._server.stdout.readline())
        if code is None:
            return Verdict.KILLED, f"no end after {timeout_s} s"
        verdicts = {_FAILED: Verdict.KILLED, _PASSED: Verdict.SURVIVED}
        return verdicts.get(code, Verdict.BROKEN), output.read_text(errors="replace")

    def _copied(self, file: str) -> Path:
        """Copy the package of a file to where imports look first; the place of the file in the
        copy.
        """
        member, _, inner = file.partition("/src/")
        parts = Path(inner).parts
        if not member or len(parts) < 2:
            raise UsageError(f"{file} is in no package of the workspace")
        package = Path(*parts[: 2 if parts[0] == "tidemill" else 1])
        target = self._folder / "path" / package
        if not target.exists():
            # Compiled modules and loops of the original serve the copy: times are copied too.
            shutil.copytree(self._root / member / "src" / package, target)
        return self._folder / "path" / inner


@contextmanager
def trial(root: Path, environment: Mapping[str, str]) -> Iterator[Trial]:
    """A place to try mutants of the checkout at `root`; it is gone at the end."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        folder = Path(name)
        (folder / "path").mkdir()
        kept = {k: v for k, v in environment.items() if k != "PYTHONDONTWRITEBYTECODE"}
        paths = filter(None, (str(folder / "path"), kept.get("PYTHONPATH")))
        with subprocess.Popen(
            [sys.executable, "-m", "tidemill.testkit.mutants.forked"],
            cwd=root,
            env={**kept, "PYTHONPATH": os.pathsep.join(paths)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as server:
            yield Trial(root, folder, server)
