"""Nobody but the user of the process reads or writes the state folder."""

from __future__ import annotations

import os
import signal
import stat
from pathlib import Path

import pytest

from tidemill.errors import UsageError
from tidemill.host.state_folder import own_folder
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


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702, 0o1777])
def test_a1_a_folder_that_others_may_write_is_refused(tmp_path: Path, mode: int) -> None:
    root = tmp_path / "state"
    root.mkdir()
    root.chmod(mode)
    with pytest.raises(UsageError, match=f"type chmod 700 {root}"):
        own_folder(root)
    assert stat.S_IMODE(root.stat().st_mode) == mode
