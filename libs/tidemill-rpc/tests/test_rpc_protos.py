"""The rules of protos/ are checked, and the check finds what breaks them."""

from __future__ import annotations

import re
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


def test_what_protos_ask_for_is_no_older_than_what_wrote_them() -> None:
    """Generated code refuses an older runtime when it is imported: a floor below it promises what
    fails.
    """
    folder = ROOT / "libs/tidemill-protos"
    asked = {
        name: tuple(map(int, version.split(".")))
        for name, version in re.findall(
            r'"(\w+)>=([\d.]+)', (folder / "pyproject.toml").read_text()
        )
    }
    messages = next(folder.rglob("*_pb2.py")).read_text()
    stubs = next(folder.rglob("*_pb2_grpc.py")).read_text()
    wrote = re.search(r"Domain\.PUBLIC,\s+(\d+),\s+(\d+),\s+(\d+),", messages)
    linked = re.search(r"GRPC_GENERATED_VERSION = '(\d+)\.(\d+)\.(\d+)'", stubs)
    assert wrote is not None
    assert linked is not None
    assert asked["protobuf"] >= tuple(map(int, wrote.groups()))
    assert asked["grpcio"] >= tuple(map(int, linked.groups()))
