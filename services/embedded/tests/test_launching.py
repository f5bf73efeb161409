"""Where jobs run is a setting; one that cannot work is refused before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.runtime import settings
from tidemill.runtime.clock import ManualClock
from tidemill.time import UsageError
from tidemill_embedded.launching import check_launching, launcher_of
from tidemill_embedded.settings import EmbeddedSettings


def loaded(folder: Path, text: str) -> EmbeddedSettings:
    file = folder / "settings.toml"
    file.write_text(f'directory = "{folder}"\n{text}')
    return settings.load(EmbeddedSettings, file)


async def test_jobs_are_processes_unless_something_else_is_said(tmp_path: Path) -> None:
    chosen = loaded(tmp_path, "")
    check_launching(chosen)
    launcher = await launcher_of(chosen, ManualClock(), lambda said: None)
    assert not launcher.remote
    await launcher.close()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[spark]\nlauncher = "yarn"', "launcher"),
        ("[spark.pods]\nexecuters = 3", 'unknown setting "executers"'),
        ("[spark.pods.retries]\nmemroy = 3", 'unknown setting "memroy"'),
        ('[spark]\nlauncher = "kubernetes"', "share no disk"),
        (
            '[spark]\nlauncher = "kubernetes"\n[store]\nblob = "s3://b"\naccess_key = "k"',
            "blob_secret",
        ),
    ],
)
def test_settings_that_cannot_work_are_refused(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        check_launching(loaded(tmp_path, text))


async def test_pods_are_launched_where_a_cluster_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = loaded(tmp_path, '[spark]\nlauncher = "kubernetes"\n[store]\nblob = "s3://b"')
    check_launching(chosen)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(UsageError, match="no API server is known"):
        await launcher_of(chosen, ManualClock(), lambda said: None)
