"""Calls become the metrics that gRPC dashboards know."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from tidemill.errors import UnknownCollection
from tidemill.rpc.call_metrics import (
    COUNTERS,
    HANDLED,
    HISTOGRAMS,
    SECONDS,
    SENT,
    STARTED,
    EndedCall,
    RecordedCalls,
    conventional_code,
)
from tidemill.rpc.client import AsyncClient
from tidemill.rpc.server import serve
from tidemill.testkit.handlers_memory import MemoryHandlers, flights

QUERY = "tidemill.query.v1.QueryService"


@dataclass
class Memory:
    """A recorder that remembers, and checks that names and labels are those declared."""

    counted: Counter[tuple[str, ...]] = field(default_factory=Counter)
    measured: list[float] = field(default_factory=list)

    def count(self, name: str, labels: Mapping[str, str]) -> None:
        assert set(labels) == set(COUNTERS[name])
        self.counted[name, *labels.values()] += 1

    def measure(self, name: str, seconds: float, labels: Mapping[str, str]) -> None:
        assert name == SECONDS
        assert set(labels) == set(HISTOGRAMS[name])
        self.measured.append(seconds)


async def test_each_call_is_counted_timed_and_logged_with_its_outcome() -> None:
    recorder, logged = Memory(), list[EndedCall]()
    observer = RecordedCalls(recorder, logged.append)
    server = await serve("127.0.0.1:0", MemoryHandlers({"flights": flights()}), observer=observer)
    async with AsyncClient(f"127.0.0.1:{server.port}") as client:
        await client.explain("v")
        await client.snapshot("flights")
        with pytest.raises(UnknownCollection):
            await client.snapshot("none")
    await server.stop(0)
    assert recorder.counted == {
        (STARTED, "unary", QUERY, "Explain"): 1,
        (HANDLED, "unary", QUERY, "Explain", "OK"): 1,
        (STARTED, "server_stream", QUERY, "Snapshot"): 2,
        (SENT, "server_stream", QUERY, "Snapshot"): 1,
        (HANDLED, "server_stream", QUERY, "Snapshot", "OK"): 1,
        (HANDLED, "server_stream", QUERY, "Snapshot", "NotFound"): 1,
    }
    assert len(recorder.measured) == 3
    assert [(call.code, call.error) for call in logged] == [
        ("OK", None), ("OK", None), ("NOT_FOUND", None),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("code", "shown"),
    [("OK", "OK"), ("NOT_FOUND", "NotFound"), ("DEADLINE_EXCEEDED", "DeadlineExceeded")],
)
def test_codes_are_written_as_dashboards_write_them(code: str, shown: str) -> None:
    assert conventional_code(code) == shown
