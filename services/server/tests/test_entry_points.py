"""Each service is a program of its own: it loads no other service, and no unused library."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from tidemill.host.roles import ROLES

ENGINES = (
    "tidemill.datalog.dataflow", "tidemill.arrangement.interval_updates", "numba", "pandas",
    "duckdb",
)  # fmt: skip
READING = ("ingest", "remap", "reclock")
"""Roles that evaluate nothing."""


@cache
def loaded_by(module: str) -> set[str]:
    """The modules of a fresh process that imports one."""
    code = f"import sys, {module}; print('\\n'.join(sys.modules))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(told.stdout.split())


def below(modules: set[str], *packages: str) -> set[str]:
    """The modules of some packages."""
    return {m for m in modules if any(m == p or m.startswith(f"{p}.") for p in packages)}


@pytest.mark.parametrize("role", ROLES)
def test_a_service_loads_no_other_service(role: str) -> None:
    modules = loaded_by(f"tidemill_{role}.__main__")
    others = [f"tidemill_{other}" for other in ROLES if other != role]
    assert not below(modules, *others, "tidemill_server", "tidemill.testkit")
    assert f"tidemill_{role}.service" in modules


@pytest.mark.parametrize("role", READING)
def test_a_service_that_evaluates_nothing_loads_no_engine(role: str) -> None:
    assert not below(loaded_by(f"tidemill_{role}.__main__"), *ENGINES)


def test_an_engine_that_is_loaded_would_be_found() -> None:
    assert below(loaded_by("tidemill.datalog.dataflow"), *ENGINES)


@pytest.mark.parametrize("role", ["remap", "ingest"])
def test_the_command_with_a_role_loads_no_other_service(role: str) -> None:
    chosen = f"ServerSettings(role=('{role}',))"
    code = (
        "import sys; from tidemill_server.up import up; from tidemill_server.services import "
        f"services_of; from tidemill_server.settings import ServerSettings; services_of({chosen});"
        "print('\\n'.join(sys.modules))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = set(told.stdout.split())
    others = {f"tidemill_{other}.service" for other in ROLES if other != role}
    assert not modules & others
    assert not below(modules, *ENGINES)


@contextmanager
def running(role: str, folder: Path, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A service of its own by the settings in the folder, as soon as it answers."""
    options = [
        "--dir", str(folder / "state"), "--services", "127.0.0.1:0",
        "--config", str(folder / "settings.yaml"),
    ]  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", f"tidemill_{role}", *options], stderr=subprocess.PIPE, text=True,
        env={**os.environ, **environment},
    )  # fmt: skip
    try:
        until = time.monotonic() + 120
        while not (folder / "state/http.address").exists():
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < until
            time.sleep(0.05)
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=120)[1]
    assert process.returncode == 0, said


OWN_KB_MAX = 90_000
"""Memory of its own, without the pages of libraries, of an idle process that evaluates nothing.

Libraries come to it in a pod, with some 20 MB.
"""


@pytest.mark.parametrize("role", ["ingest", "remap", "compaction"])
def test_a_service_runs_by_the_settings_of_the_whole_system_and_is_small(
    role: str, tmp_path: Path
) -> None:
    (tmp_path / "settings.yaml").write_text(
        "compute: {hold_interval_s: 7}\ningest: {records_per_poll: 9}\nhttp_port: 0\n"
    )
    with running(role, tmp_path, TIDEMILL_UP_RECLOCK__UNBOUND_ROWS_MAX="5") as process:
        status = Path(f"/proc/{process.pid}/status")
        until = time.monotonic() + 60  # it rests for five seconds before it gives memory back
        while (
            own_kb := int(re.findall(r"RssAnon:\s+(\d+) kB", status.read_text())[0])
        ) > OWN_KB_MAX:
            assert time.monotonic() < until, own_kb
            time.sleep(0.2)


def test_a_setting_that_no_service_has_is_refused_by_each(tmp_path: Path) -> None:
    config = tmp_path / "settings.yaml"
    config.write_text("computer: {hold_interval_s: 7}\n")
    done = subprocess.run(
        [sys.executable, "-m", "tidemill_remap", "--dir", str(tmp_path), "--config", str(config)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert 'unknown setting "computer"' in done.stderr


@pytest.mark.parametrize("program", ["tidemill_remap", "tidemill_operator", "tidemill.client"])
def test_a_variable_that_no_command_knows_ends_each_program_with_status_2(program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", program, "get"], capture_output=True, text=True, check=False,
        env={**os.environ, "TIDEMILL_UP_DIRECTROY": "/state"},
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == (
        "tidemill: no command knows the environment variable TIDEMILL_UP_DIRECTROY; "
        "did you mean TIDEMILL_UP_DIRECTORY?\n"
    )


def test_a_service_refuses_roles_and_files_of_others(tmp_path: Path) -> None:
    for option, says in (
        ("--role=query", "does not have the role query"),
        ("--file=.", "applies files"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "tidemill_remap", "--dir", str(tmp_path), option],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 1
        assert says in done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["remap", "up", "--role", "query"], "does not have the role query"),
        (["remap", "up", "--help"], "Bind what sources have come to."),
        (["operator", "operator", "--help"], "of a Kubernetes cluster"),
        (["query", "get", "--help"], "Usage: tidemill get"),
    ],
)
def test_the_image_of_a_service_runs_its_own_program(
    arguments: list[str], says: str, tmp_path: Path
) -> None:
    """With the arguments of the chart; the image of query has the command as well."""
    script = Path(__file__).resolve().parents[1] / "service.sh"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", script, *arguments], capture_output=True, text=True, check=False, cwd=tmp_path,
        env={**os.environ, "PATH": path, "COLUMNS": "200"},
    )  # fmt: skip
    assert says in done.stdout + done.stderr
