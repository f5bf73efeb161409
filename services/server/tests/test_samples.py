"""Samples: files that pass their own checks and cases, and a generator that a server hears."""

from __future__ import annotations

import json
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import get_args

import pytest
import typer
from typer.testing import CliRunner

from tidemill.catalog.apply.check import check_files
from tidemill.client.command import app
from tidemill_server.commands.init_command import init
from tidemill_server.samples import GENERATOR, Sample, contents, generating, write
from tidemill_server.trials.command import run_cases

SAMPLES: tuple[Sample, ...] = get_args(Sample)


def cases_pass(folder: Path) -> bool:
    command = typer.Typer()
    command.command()(run_cases)
    return CliRunner().invoke(command, [str(folder)]).exit_code == 0


@pytest.mark.parametrize("sample", SAMPLES)
def test_a_sample_fits_and_its_cases_pass(sample: Sample, tmp_path: Path) -> None:
    command = typer.Typer()
    command.command()(init)
    done = CliRunner().invoke(command, [sample, str(tmp_path / "new")])
    assert done.exit_code == 0
    assert f"{GENERATOR}" in done.output
    resources = tmp_path / "new" / f"{sample}.yaml"
    assert check_files({str(resources): resources.read_text()}) == []
    assert cases_pass(tmp_path / "new")
    again = CliRunner().invoke(command, [sample, str(tmp_path / "new")])
    assert again.exit_code == 1
    assert "there already" in again.output


def test_a_case_of_a_sample_can_fail(tmp_path: Path) -> None:
    write("flights", tmp_path)
    resources = tmp_path / "flights.yaml"
    resources.write_text(resources.read_text().replace("d > 30", "d > 60"))
    assert not cases_pass(tmp_path)


class Heard(BaseHTTPRequestHandler):
    """Takes rows and remembers them."""

    rows: list[tuple[str, dict[str, object]]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.rows.append((self.path, json.loads(body)))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        """Nothing is logged."""


@pytest.mark.parametrize("sample", SAMPLES)
def test_a_generator_pushes_rows_of_the_columns_of_its_sources(
    sample: Sample, tmp_path: Path
) -> None:
    rows: list[tuple[str, dict[str, object]]] = []
    with (
        HTTPServer(("127.0.0.1", 0), type("Here", (Heard,), {"rows": rows})) as server,
        generating(sample, tmp_path) as resources,
    ):
        assert resources.exists()
        (tmp_path / "http.address").write_text(f"http://127.0.0.1:{server.server_port}\n")
        while len(rows) < 2:
            server.handle_request()
    text = contents(sample)[f"{sample}.yaml"]
    for path, row in rows:
        source = path.split("/")[3]
        assert f"metadata: {{name: {source}}}" in text
        assert all(f"name: {column}" in text for column in row)


def test_a_generator_says_how_it_is_called(tmp_path: Path) -> None:
    write("sensors", tmp_path)
    command = [sys.executable, str(tmp_path / GENERATOR), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "--address" in done.stdout


def test_up_offers_the_samples() -> None:
    done = CliRunner().invoke(app, ["up", "--help"], env={"COLUMNS": "200"})
    assert done.exit_code == 0
    assert "--sample" in done.output
    assert "--http-port" in done.output
