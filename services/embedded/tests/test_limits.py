"""Limits on what comes in: each is in the settings, in the documentation, and refuses at a running server."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from tidemill_embedded.settings import LimitSettings

PAGE = Path(__file__).parents[3] / "docs" / "limits.md"


def test_s9_every_limit_is_documented_with_its_default() -> None:
    written = dict(re.findall(r"^\| `(\w+)` \| ([\d.]+) \|", PAGE.read_text(), re.MULTILINE))
    settings = msgspec.structs.asdict(LimitSettings())
    assert {name: float(value) for name, value in written.items()} == settings
