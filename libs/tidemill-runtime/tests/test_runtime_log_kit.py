"""The embedded log keeps every law of the log port."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.runtime.log import Log
from tidemill.runtime.log_embedded import EmbeddedLog
from tidemill.testkit.kits.log import LAWS, Law


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize("segment_bytes_max", [4_096, 64 << 20])
async def test_the_embedded_log_conforms(law: Law, segment_bytes_max: int, tmp_path: Path) -> None:
    async def open_log() -> Log:
        return EmbeddedLog(tmp_path, segment_bytes_max=segment_bytes_max)

    await law(open_log, "topic")
