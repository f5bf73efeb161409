"""The place of jobs is a setting; one that cannot work is refused before anything starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pyspark
import pytest
from kubernetes.aio.client.configuration import Configuration

from tidemill.errors import UsageError
from tidemill.host.launching import check_launching, lacking_for_jobs, launcher_of
from tidemill.runtime import settings
from tidemill.runtime.clock import ManualClock
from tidemill.shard.stores import BlobPlace
from tidemill.spark.launcher import FailureKind, Job, JobFailed, JobKind
from tidemill.spark.pod_launcher import APPLICATIONS, PODS, DriverKind, PodLauncher
from tidemill.spark.pod_specs import PodJob
from tidemill.spark.pod_states import EXIT_REFUSED
from tidemill_server.settings import ServerSettings

HERE = Path(__file__).resolve().parents[1]


def loaded(folder: Path, text: str) -> ServerSettings:
    file = folder / "settings.toml"
    file.write_text(f'directory = "{folder}"\n{text}')
    return settings.load(ServerSettings, file)


async def test_jobs_are_processes_unless_something_else_is_said(tmp_path: Path) -> None:
    chosen = loaded(tmp_path, "")
    check_launching(chosen)
    launcher = await launcher_of(chosen, ManualClock(), lambda said: None)
    assert not launcher.remote
    await launcher.close()


async def test_a_job_without_java_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = await launcher_of(loaded(tmp_path, ""), ManualClock(), lambda said: None)
    job = Job(JobKind.HYDRATION, "delays", "no.module", b"")
    monkeypatch.setenv("PATH", str(tmp_path))
    for home in (None, tmp_path):
        monkeypatch.delenv("JAVA_HOME", raising=False)
        if home is not None:
            monkeypatch.setenv("JAVA_HOME", str(home))
        outcome = await launcher.launch(job)
        assert isinstance(outcome, JobFailed)
        assert outcome.kind is FailureKind.REFUSED
        assert "install a JDK 17 or newer" in outcome.reason
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/java").touch()
    assert lacking_for_jobs() == ""


async def test_a_job_without_spark_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemill.host.launching.find_spec", lambda name: None)
    assert "pip install 'tidemill[spark]'" in lacking_for_jobs()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[spark]\nlauncher = "yarn"', "launcher"),
        ("[spark.pods]\nexecuters = 3", 'unknown setting "executers"'),
        ("[spark.pods.retries]\nmemroy = 3", 'unknown setting "memroy"'),
        ('[spark]\nlauncher = "kubernetes"', "share no disk"),
        ('[spark]\nlauncher = "sparkapplication"', "launcher is sparkapplication .* share no disk"),
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


async def test_a_process_that_launches_nothing_needs_no_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = '[spark]\nlauncher = "kubernetes"\n[store]\nblob = "s3://b"'
    chosen = loaded(tmp_path, f'role = ["ingest", "remap", "query"]\n{text}')
    monkeypatch.setitem(sys.modules, "tidemill.kubernetes.api", None)  # as in their images
    launcher = await launcher_of(chosen, ManualClock(), lambda said: None)
    assert not launcher.remote
    await launcher.close()
    launching = msgspec.structs.replace(chosen, role=("ingest,compaction",))
    with pytest.raises(UsageError, match=r"pip install 'tidemill\[kubernetes\]'"):
        await launcher_of(launching, ManualClock(), lambda said: None)


@pytest.mark.parametrize(
    ("launcher", "made"), [("kubernetes", PODS), ("sparkapplication", APPLICATIONS)]
)
async def test_drivers_are_made_as_the_setting_says(
    launcher: str, made: DriverKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f'[spark]\nlauncher = "{launcher}"\n[spark.pods]\nnamespace = "jobs"\n'
    chosen = loaded(tmp_path, f'{text}[store]\nblob = "s3://b"')

    async def anywhere() -> Configuration:
        return Configuration()

    monkeypatch.setattr("tidemill.kubernetes.api.in_this_place", anywhere)
    launcher_made = await launcher_of(chosen, ManualClock(), lambda said: None)
    assert isinstance(launcher_made, PodLauncher)
    assert launcher_made.drivers is made
    await launcher_made.close()


def test_the_image_runs_the_driver_of_an_application_and_keeps_its_exit_status(
    tmp_path: Path,
) -> None:
    """A start like that of Spark; the job is refused before there is a session, which spares
    seconds.
    """
    place = BlobPlace(f"file:{tmp_path}")
    told = PodJob("jobs.none", "job-a/missing.spec", "", "job-a/1.result", place, {}, {}, "")
    (tmp_path / "spark.properties").write_text("spark.master=local[1]\nspark.driver.memory=256m\n")
    ran = subprocess.run(
        ["bash", HERE / "entrypoint.sh", "driver",
         "--properties-file", tmp_path / "spark.properties",
         "--class", "org.apache.spark.deploy.PythonRunner",
         f"local://{HERE / 'job.py'}", msgspec.json.encode(told).decode()],
        env={
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
            "SPARK_DRIVER_BIND_ADDRESS": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable,
        },
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    said = ran.stdout + ran.stderr
    assert "refused: there is no specification job-a/missing.spec" in said
    assert ran.returncode == EXIT_REFUSED
