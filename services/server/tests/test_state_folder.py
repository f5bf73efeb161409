"""Nobody but the user of the process reads or writes the state folder."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import typer

from tidemill.errors import UsageError
from tidemill.host.fsck_command import fsck
from tidemill.host.state_folder import check_files, own_folder
from tidemill.rpc.messages import ResourceDocument
from tidemill.testkit.up import up_process

RESOURCES = """
apiVersion: tidemill.dev/v1alpha1
kind: Source
metadata: {name: web}
spec: {http: {}, format: {json: {}}, columns: [{name: n, type: int}], timestampInterval: 50ms}
"""


def test_a1_what_a_server_makes_is_for_its_user_alone(tmp_path: Path) -> None:
    """The log, the versions, the objects: every file 0600, every folder 0700, whatever the umask
    was.
    """
    before = os.umask(0o000)
    try:
        with up_process(tmp_path) as up:
            document = ResourceDocument(RESOURCES, "web.yaml")
            up.until(lambda client: client.apply(document))
            up.until(lambda client: client.push("web", ['{"n": 1}']))
            up.until(lambda client: client.query("web(n)").table.num_rows or None)
            up.stop(signal.SIGTERM)
    finally:
        os.umask(before)
    found = [tmp_path / "state", *(tmp_path / "state").rglob("*")]
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in found}
    assert len(found) > 10
    wide = {path: oct(mode) for path, mode in modes.items() if mode & 0o077}
    assert not wide


def test_a1_a_folder_that_others_may_read_is_narrowed(tmp_path: Path) -> None:
    root = tmp_path / "state"
    root.mkdir()
    root.chmod(0o755)
    own_folder(root)
    assert stat.S_IMODE(root.stat().st_mode) == 0o700


def test_a1_a_folder_of_others_is_not_narrowed(tmp_path: Path) -> None:
    """`--dir /` and `--dir /etc` took the rights of all other users away."""
    root = tmp_path / "etc"
    (root / "lost+found").mkdir(parents=True)
    (root / "lock").mkdir()  # no file of a state folder
    (root / "passwd").touch()
    root.chmod(0o755)
    with pytest.raises(UsageError, match=rf"such as 'lock'.*mode 755.*or type chmod 700 {root}"):
        own_folder(root)
    assert stat.S_IMODE(root.stat().st_mode) == 0o755
    (root / "versions.sqlite").touch()  # the companion: a copy of a state folder
    own_folder(root)
    assert stat.S_IMODE(root.stat().st_mode) == 0o700


def test_a1_a_state_folder_whose_log_is_elsewhere_is_narrowed(tmp_path: Path) -> None:
    root = tmp_path / "state"
    (tmp_path / "log").mkdir()
    root.mkdir()
    (root / "log").symlink_to(tmp_path / "log")
    root.chmod(0o755)
    own_folder(root)
    assert stat.S_IMODE(root.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702, 0o1777])
def test_a1_a_folder_that_others_may_write_is_refused(tmp_path: Path, mode: int) -> None:
    root = tmp_path / "state"
    root.mkdir()
    root.chmod(mode)
    with pytest.raises(UsageError, match=f"type chmod 700 {root}"):
        own_folder(root)
    assert stat.S_IMODE(root.stat().st_mode) == mode


@pytest.mark.parametrize("name", ["log", "log/topics", "blob", "samples", "machine-code"])
def test_a_file_with_the_name_of_a_folder_is_told_and_what_to_do(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("notes of a user")
    says = f"{tmp_path / name} is in the way.*type mv .*another state directory with --dir"
    with pytest.raises(UsageError, match=says):
        check_files(tmp_path)
    assert (tmp_path / name).read_text() == "notes of a user"


def test_a_file_log_is_in_nobodys_way_where_the_log_is_elsewhere(tmp_path: Path) -> None:
    """`tidemill up --role query --dir d > d/log`: such a process makes no folder of that name."""
    (tmp_path / "log").write_text("printed by the process")
    check_files(tmp_path, embedded_log=False)
    (tmp_path / "blob").touch()
    with pytest.raises(UsageError, match="blob is in the way"):
        check_files(tmp_path, embedded_log=False)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_fsck_looks_for_the_folder_of_the_log_as_up_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], elsewhere: bool
) -> None:
    config, root = tmp_path / "up.toml", tmp_path / "state"
    config.write_text('log = "kafka:127.0.0.1:9"\n' if elsewhere else "")
    root.mkdir(mode=0o700)
    (root / "log").touch()
    with pytest.raises((typer.Exit, SystemExit)):  # no stores are there
        fsck(str(root), config=config)
    assert ("log is in the way" in capsys.readouterr().err) is not elsewhere


@pytest.mark.parametrize("below", ["", "deeper/still"])
def test_a_state_folder_that_is_a_file_or_below_one_is_told(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").touch()
    says = f"{tmp_path / 'file'} is no folder; name another one with --dir"
    with pytest.raises(UsageError, match=says):
        own_folder(tmp_path / "file" / below)


def test_a_folder_that_its_user_may_not_write_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answers of the system are those that a user beside root gets."""

    def refuse(path: Path, **_: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(UsageError, match="its file system is read-only; name another one"):
        own_folder(tmp_path)
    tmp_path.chmod(0o500)
    with pytest.raises(UsageError, match=r"type chmod 700 .*, or name another one with --dir"):
        own_folder(tmp_path)
    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(UsageError, match="name a folder with --dir that this user may write"):
        own_folder(tmp_path / "state")


def bind(path: Path) -> None:
    with closing(socket.socket(socket.AF_UNIX)) as made:
        made.bind(str(path))


ODD: dict[str, Callable[[Path], None]] = {
    "a pipe": os.mkfifo,
    "a socket": bind,
    "a folder where a file belongs": os.mkdir,
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to nothing": lambda path: path.symlink_to("nothing"),
    "a link that leads nowhere": lambda path: path.symlink_to(path.name),
}


@pytest.mark.parametrize("says", ODD)
@pytest.mark.parametrize(
    "name",
    ["consensus.sqlite", "last_tried.json", "grpc.address", "log/lock", "log/topics/t/topic.json",
     "log/topics/t/0/00000000000000000000.log", "log/topics/t/0/acknowledged"],
)  # fmt: skip
def test_only_regular_files_are_opened_in_a_state_folder(
    tmp_path: Path, name: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe held the start for ever, and a link to a device that never ends took all memory."""
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    monkeypatch.chdir(path.parent)  # the name of a socket is short
    ODD[says](Path(path.name))
    with pytest.raises(UsageError, match=f"{name} in the state directory is {says}.* type mv "):
        check_files(tmp_path)


def test_files_folders_and_links_to_them_are_a_state_folder(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "log/topics/http.lock").mkdir(parents=True)  # a topic is called as it likes
    (tmp_path / "log/topics/http.lock/topic.json").write_text("{}")
    (tmp_path / "consensus.sqlite").touch()
    (tmp_path / "last_tried.json").symlink_to("consensus.sqlite")
    (tmp_path / "blob").symlink_to("elsewhere")
    check_files(tmp_path)


@pytest.mark.parametrize(
    ("name", "error"),
    [("lost+found", PermissionError), ("t", FileNotFoundError), ("log", PermissionError)],
)
def test_a_folder_of_the_volume_or_one_that_goes_meanwhile_ends_no_start(
    tmp_path: Path, name: str, error: type[OSError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The root of a new ext4 volume has a folder that only root lists: no server began there."""
    (tmp_path / "lost+found").mkdir(0o700)
    os.mkfifo(tmp_path / "lost+found/consensus.sqlite")
    (tmp_path / "log/topics/t").mkdir(parents=True)
    listed = []

    def listing(path: Any) -> Any:
        listed.append(Path(path).name)
        if listed[-1] == name:
            raise error(5, "as it is", path)
        return scandir(path)

    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", listing)
    if name == "log":  # what the server itself reads it has to list
        with pytest.raises(UsageError, match="cannot be read"):
            check_files(tmp_path)
    else:
        check_files(tmp_path)
        assert listed == [tmp_path.name, "log", "topics", "t"]


def test_a_process_does_not_begin_with_a_pipe_in_its_state_folder(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    os.mkfifo(tmp_path / "consensus.sqlite")
    started = subprocess.run(
        [Path(sys.executable).with_name("tidemill"), "up", "--dir", tmp_path],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert started.returncode == 1
    assert "consensus.sqlite in the state directory is a pipe" in started.stderr
