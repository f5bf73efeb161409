"""Memory that a process gives back once its stores are open."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

OPENED = """
import asyncio, sys
from typing import get_overloads
from tidemill.errors import Unavailable
from tidemill.host.process import opened
from tidemill.host.settings import ProcessSettings, StoreSettings

assert "redis" not in sys.modules
nobody = StoreSettings(consensus="redis://127.0.0.1:1/0")

async def open_one() -> None:
    try:
        async with opened(ProcessSettings(directory=sys.argv[1], store=nobody), []):
            pass
    except Unavailable:
        print("unavailable")

asyncio.run(open_one())
from redis.commands.core import BasicKeyCommands
print(len(get_overloads(BasicKeyCommands.get)))
"""


def test_signatures_of_a_library_that_comes_with_a_store_are_forgotten(tmp_path: Path) -> None:
    """They are a tenth of the memory of a process at rest."""
    command = [sys.executable, "-c", OPENED, str(tmp_path / "state")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split() == ["unavailable", "0"]
