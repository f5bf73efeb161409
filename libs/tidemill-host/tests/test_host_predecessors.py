"""Sessions of dead processes in one folder: the lock of a living one is no proof of a death."""

from __future__ import annotations

import os
import subprocess
import sys
from errno import ENOSPC
from pathlib import Path

import pytest

from tidemill.host import predecessors
from tidemill.host.predecessors import BYTES_MAX, Predecessors

LIVES = """
import sys
from pathlib import Path
from tidemill.host.predecessors import Predecessors
past = Predecessors(Path(sys.argv[1]))
past.note(sys.argv[2])
print(sorted(past.dead), flush=True)
sys.stdin.read()
"""


def started(file: Path, session: str) -> subprocess.Popen[str]:
    """A process that has noted its session, and lives until it is killed."""
    command = [sys.executable, "-c", LIVES, str(file), session]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_sessions_of_a_killed_process_are_dead_and_those_of_a_living_one_are_not(
    tmp_path: Path,
) -> None:
    file = tmp_path / "sessions"
    first = started(file, "s1")
    meanwhile = Predecessors(file)
    assert meanwhile.dead == frozenset()
    meanwhile.note("nobody has the list but the first one")
    first.kill()
    first.communicate()
    second = started(file, "s2")
    second.kill()
    second.communicate()
    last = Predecessors(file)
    assert last.dead == {"s1", "s2"}
    last.close()


def test_a_list_of_another_machine_or_of_an_earlier_start_of_it_proves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, boot = tmp_path / "sessions", tmp_path / "boot"
    monkeypatch.setattr(predecessors, "BOOT", boot)
    dead = []
    for name in ("one", "one", "other", "other", ""):
        boot.write_text(f"{name}\n")
        past = Predecessors(file)
        dead.append(sorted(past.dead))
        past.note(f"of {name}{len(dead)}")
        past.close()
    assert dead == [[], ["of one1"], [], ["of other3"], []]


@pytest.mark.parametrize("damage", [b"\xff\xfe\n", b"x" * (BYTES_MAX + 1), b"", b"torn"])
def test_a_list_that_cannot_be_read_proves_nothing_and_is_begun_anew(
    damage: bytes, tmp_path: Path
) -> None:
    file = tmp_path / "sessions"
    file.write_bytes(damage)
    first = Predecessors(file)
    assert first.dead == frozenset()
    first.note("s1")
    first.close()
    begun_anew = damage != b"\xff\xfe\n"  # what is no text is left alone
    assert Predecessors(file).dead == ({"s1"} if begun_anew else frozenset())


def test_a_full_disk_frees_no_lock_of_a_living_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = []

    def no_room(*_: object) -> int:
        full.append(True)
        raise OSError(ENOSPC, "no room")

    file = tmp_path / "sessions"
    living = Predecessors(file)
    living.note("s1")
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", no_room)
        living.note("s2")
    assert full
    assert Predecessors(file).dead == frozenset()
    living.close()
    assert Predecessors(file).dead == {"s1"}


def test_without_a_folder_nothing_is_proved_and_nothing_fails(tmp_path: Path) -> None:
    past = Predecessors(tmp_path / "nowhere" / "sessions")
    past.note("s1")
    past.close()
    assert past.dead == frozenset()
