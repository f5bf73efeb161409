"""The rules of protos/ are checked, and the check finds what breaks them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def checked(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [str(ROOT / "infra/buf/buf.sh"), "check", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.server
@pytest.mark.parametrize(
    ("file", "old", "new", "says"),
    [
        ("query", "", "", None),
        ("query", "  string goal = 1;\n", "  string goals = 1;\n", "from \"goal\" to \"goals\""),
        ("ingest", "  uint64 offset = 2;\n", "  string offset = 2;\n", "type"),
        ("storage", "  // Gives up the capability.\n  rpc Drop(DropRequest) returns (DropResponse);\n", "", "Drop"),
        ("work", "service WorkService", "service Worker", "suffixed"),
    ],
)  # fmt: skip
def test_a_change_that_breaks_callers_or_rules_is_found(
    tmp_path: Path, file: str, old: str, new: str, says: str | None
) -> None:
    shutil.copytree(ROOT / "protos", tmp_path / "protos")
    changed = tmp_path / "protos" / "tidemill" / file / "v1" / f"{file}.proto"
    text = changed.read_text()
    assert old in text
    changed.write_text(text.replace(old, new, 1))
    found = checked(tmp_path / "protos")
    assert (found.returncode == 0) == (says is None), found.stdout + found.stderr
    if says is not None:
        assert says in found.stdout + found.stderr
