"""Domain types of the commands of views to wire messages and back, without loss."""

from __future__ import annotations

from collections.abc import Mapping

from tidemill.rpc.codecs import frontier_in, frontier_out
from tidemill.rpc.codecs_storage import capability_in, capability_out
from tidemill.rpc.messages import HeldCapability, MaintainedView
from tidemill_protos.compute.v1 import compute_pb2 as compute


def view_out(view: MaintainedView, token: str | None) -> compute.MaintainViewRequest:
    """The request that asks for a view."""
    return compute.MaintainViewRequest(
        name=view.name, program=view.program,
        inputs={predicate: capability_out(held) for predicate, held in view.inputs.items()},
        at=None if view.at is None else frontier_out(view.at),
        outputs=view.outputs, retain_ms=view.retain_ms, owner=view.owner, lease_ms=view.lease_ms,
        token=token, into={predicate: capability_out(held) for predicate, held in view.into.items()},
    )  # fmt: skip


def view_in(request: compute.MaintainViewRequest) -> MaintainedView:
    """The view of a request.

    Raises: UsageError for a capability that does not say what it allows.
    """
    return MaintainedView(
        request.name, request.program,
        {predicate: capability_in(held) for predicate, held in request.inputs.items()},
        frontier_in(request.at) if request.HasField("at") else None,
        tuple(request.outputs),
        request.retain_ms if request.HasField("retain_ms") else None,
        request.owner,
        request.lease_ms if request.HasField("lease_ms") else None,
        {predicate: capability_in(held) for predicate, held in request.into.items()},
    )  # fmt: skip


def outputs_out(held: Mapping[str, HeldCapability]) -> compute.MaintainViewResponse:
    """The answer, secrets included."""
    outputs = {predicate: capability_out(each) for predicate, each in held.items()}
    return compute.MaintainViewResponse(outputs=outputs)


def outputs_in(message: compute.MaintainViewResponse) -> dict[str, HeldCapability]:
    """The capabilities of an answer, by predicate."""
    return {predicate: capability_in(each) for predicate, each in message.outputs.items()}
