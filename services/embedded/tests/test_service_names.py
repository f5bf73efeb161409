"""Each service runs under its own name: `python -m tidemill_remap` is `tidemill up --role remap`."""

from __future__ import annotations

import runpy
import sys

import pytest

from tidemill.runtime import commands
from tidemill_embedded.replicas.roles import ROLES


@pytest.mark.parametrize("role", ROLES)
def test_a_service_is_the_command_with_its_role(role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[tuple[str, ...]] = []
    monkeypatch.setattr(commands, "run_command", lambda *words: called.append(words))
    monkeypatch.setattr(sys, "argv", ["python", "--dir", "state"])
    runpy.run_module(f"tidemill_{role}", run_name="__main__")
    assert called == [("up", "--role", role, "--dir", "state")]
