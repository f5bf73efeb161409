"""Ready loops are compiled once for all checkouts of a user, and taken from that user alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tidemill.testkit import ready_loops as loops

MODULE = "tidemill/ready_loops.abi3.so"


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders that modules have been built in, each with other bytes."""
    folders: list[Path] = []

    def build(folder: Path) -> None:
        folders.append(folder)
        (folder / "tidemill").mkdir(parents=True)
        (folder / MODULE).write_text(f"module {len(folders)}")

    monkeypatch.setattr(loops, "_build", build)
    monkeypatch.setattr(loops, "_digest", lambda: "digest")
    return folders


def test_a_second_checkout_takes_the_loops_of_the_first(tmp_path: Path, built: list[Path]) -> None:
    first = loops.ready_loops(tmp_path / "first", tmp_path / "kept")
    second = loops.ready_loops(tmp_path / "second", tmp_path / "kept")
    assert loops.ready_loops(tmp_path / "first", tmp_path / "none") == first == built[0]
    assert (second / MODULE).read_text() == (first / MODULE).read_text() == "module 1"
    assert len(built) == 1


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_loops_that_others_may_write_are_not_taken(
    tmp_path: Path, built: list[Path], mode: int
) -> None:
    """They run with all rights of the user."""
    loops.ready_loops(tmp_path / "first", tmp_path / "kept")
    (tmp_path / "kept/digest.so").chmod(mode)
    second = loops.ready_loops(tmp_path / "second", tmp_path / "kept")
    assert (second / MODULE).read_text() == "module 2"


def test_where_none_can_be_kept_loops_are_built(tmp_path: Path, built: list[Path]) -> None:
    (tmp_path / "file").touch()
    folder = loops.ready_loops(tmp_path / "first", tmp_path / "file/kept")
    assert (folder / MODULE).read_text() == "module 1"


def test_loops_of_the_oldest_states_are_forgotten(tmp_path: Path, built: list[Path]) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    for age in range(loops.KEPT_MAX + 3):
        (kept / f"{age}.so").touch()
        os.utime(kept / f"{age}.so", (1_000 - age, 1_000 - age))
    loops.ready_loops(tmp_path / "first", kept)
    wanted = {"digest.so", *(f"{age}.so" for age in range(loops.KEPT_MAX - 1))}
    assert {each.name for each in kept.iterdir()} == wanted
