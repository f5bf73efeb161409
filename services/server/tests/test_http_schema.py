"""Random requests by the document of OpenAPI: every answer is one that the document has."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from tidemill.testkit.web import web

EXAMPLES = os.environ.get("SCHEMA_EXAMPLES", "8")
"""Random requests of each operation, beside those that cover its arguments."""

SECONDS = os.environ.get("SCHEMA_SECONDS", "15")
"""Seconds after which no further request is made up."""

LEFT_OUT = ("positive_data_acceptance",)
"""Goals, records and documents are texts of a language: no schema says which are right."""


async def test_random_requests_get_documented_answers(tmp_path: Path) -> None:
    async with web(tmp_path) as asked:
        await asked.insert()
        command = [
            str(Path(sys.executable).parent / "schemathesis"), "run",
            f"{asked.address}/v1/openapi.json",
            "--exclude-path", "/v1/subscribe",  # its answer has no end
            "--phases", "coverage,fuzzing", "--exclude-checks", ",".join(LEFT_OUT),
            "--max-examples", EXAMPLES, "--max-time", SECONDS, "--generation-deterministic", "--no-shrink",
            "--continue-on-failure", "--request-timeout", "20", "--no-color",
        ]  # fmt: skip
        ran = await asyncio.create_subprocess_exec(
            *command, cwd=tmp_path, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        said, _ = await ran.communicate()
        lines = [line[:300] for line in said.decode().splitlines()]
        assert ran.returncode == 0, "\n".join(lines[-200:])
        assert any("Test cases:" in line for line in lines)
        assert (await asked.ask("/healthz")).body == b"ok\n"
