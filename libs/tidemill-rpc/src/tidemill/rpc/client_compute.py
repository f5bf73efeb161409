"""The commands of views, called; in domain types."""

from __future__ import annotations

from typing import Any

import grpc.aio

from tidemill.rpc import codecs_compute, codecs_storage
from tidemill.rpc.messages import HeldCapability, MaintainedView
from tidemill.rpc.outcomes import ends
from tidemill_protos.compute.v1 import compute_pb2 as compute
from tidemill_protos.compute.v1 import compute_pb2_grpc


class ComputeCalls:
    """The commands of views of one server. None of them is retried here."""

    def __init__(self, channel: grpc.aio.Channel, timeout_s: float) -> None:
        self._stub: Any = compute_pb2_grpc.ComputeServiceStub(channel)
        self._timeout_s = timeout_s

    async def maintain_view(
        self, view: MaintainedView, *, token: str | None = None
    ) -> dict[str, HeldCapability]:
        """Maintain a program over what is held; a capability to read each output, by predicate.

        With a `token`, 16 characters or more that nobody guesses, the call may be made again.
        """
        request = codecs_compute.view_out(view, token)
        method = self._stub.MaintainView(request, timeout=self._timeout_s)
        return codecs_compute.outputs_in(await ends(method, writes=True))

    async def drop_view(self, held: HeldCapability) -> None:
        """End the view that was begun so, by a read capability on one of its outputs."""
        request = compute.DropViewRequest(capability=codecs_storage.capability_out(held))
        await ends(self._stub.DropView(request, timeout=self._timeout_s), writes=True)
