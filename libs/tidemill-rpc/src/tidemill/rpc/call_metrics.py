"""Calls as the metrics that gRPC dashboards know: `grpc_server_*`, with their usual labels.

The recorder is handed in, so that this library needs no metrics library; `COUNTERS` and
`HISTOGRAMS` say which names it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from tidemill_protos.catalog.v1 import catalog_pb2
from tidemill_protos.ingest.v1 import ingest_pb2
from tidemill_protos.query.v1 import query_pb2
from tidemill_protos.storage.v1 import storage_pb2
from tidemill_protos.work.v1 import work_pb2

STARTED = "grpc_server_started_total"
HANDLED = "grpc_server_handled_total"
SENT = "grpc_server_msg_sent_total"
REFUSED = "tidemill_refusals_total"
SECONDS = "grpc_server_handling_seconds"

CALL_LABELS = ("grpc_type", "grpc_service", "grpc_method")
COUNTERS: Mapping[str, tuple[str, ...]] = {
    STARTED: CALL_LABELS,
    HANDLED: (*CALL_LABELS, "grpc_code"),
    SENT: CALL_LABELS,
    REFUSED: ("limit",),
}
"""Names of counters and the labels of each."""
HISTOGRAMS: Mapping[str, tuple[str, ...]] = {SECONDS: CALL_LABELS}
"""Names of histograms of seconds and the labels of each."""


class Recorder(Protocol):
    """The registry that keeps the metrics."""

    def count(self, name: str, labels: Mapping[str, str]) -> None:
        """One more of a counter of `COUNTERS`."""
        ...

    def measure(self, name: str, seconds: float, labels: Mapping[str, str]) -> None:
        """One measurement of a histogram of `HISTOGRAMS`."""
        ...


@dataclass(frozen=True, slots=True)
class EndedCall:
    """A call that is over; `error` is set only for a bug, never for an error of Tidemill's own."""

    method: str
    code: str
    seconds: float
    error: BaseException | None


class RecordedCalls:
    """An observer of calls that counts and times them, and shows each ended one to `log`."""

    def __init__(self, recorder: Recorder, log: Callable[[EndedCall], None] | None = None) -> None:
        self._recorder = recorder
        self._log = log

    def started(self, method: str) -> None:
        """A call of `method` arrived."""
        self._recorder.count(STARTED, call_labels(method))

    def sent(self, method: str) -> None:
        """A message of a stream was sent."""
        self._recorder.count(SENT, call_labels(method))

    def refused(self, limit: str) -> None:
        """A call reached the limit of this setting."""
        self._recorder.count(REFUSED, {"limit": limit})

    def ended(self, method: str, code: str, seconds: float, error: BaseException | None) -> None:
        """The call is over."""
        labels = call_labels(method)
        self._recorder.count(HANDLED, {**labels, "grpc_code": conventional_code(code)})
        self._recorder.measure(SECONDS, seconds, labels)
        if self._log is not None:
            self._log(EndedCall(method, code, seconds, error))


def call_labels(method: str) -> dict[str, str]:
    """The labels of `/package.Service/Method`."""
    service, _, name = method.removeprefix("/").partition("/")
    kind = _STREAMING.get(method, "unary")
    return {"grpc_type": kind, "grpc_service": service, "grpc_method": name}


def conventional_code(code: str) -> str:
    """The code as dashboards write it: `NOT_FOUND` is `NotFound`, `OK` stays."""
    return code if code == "OK" else "".join(word.capitalize() for word in code.split("_"))


_STREAMING = {
    f"/{service.full_name}/{method.name}": "bidi_stream"
    if method.client_streaming
    else "server_stream"
    for file in (catalog_pb2, ingest_pb2, query_pb2, storage_pb2, work_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
    if method.server_streaming
}
