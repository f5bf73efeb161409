"""A call over HTTP past its deadline says whether anything may have happened."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tidemill.errors import DeadlinePassed, Indeterminate
from tidemill.rpc.audited import NoAuditor
from tidemill.rpc.calls import Calls, DeadlinePolicy, SilentObserver
from tidemill.rpc.identity import EVERYBODY, Open, Role
from tidemill.runtime.http_messages import HttpReply, HttpRequest
from tidemill_query.web.door import Asked, Door, Handlers, Operation, Proof
from tidemill_query.web.openapi import OPERATIONS

NO_HANDLERS: Any = None
GIVEN = {"name": "n", "kind": "View", "goal": "p(x)", "record": "p(1)"}
WRITING = {
    "POST /v1/apply",
    "DELETE /v1/resources/{kind}/{name}",
    "POST /v1/views/{name}/approve",
    "POST /v1/views/{name}/abort",
    "POST /v1/tables/{name}/rows",
    "POST /v1/sources/{name}/rows",
    "POST /v1/webhooks/{name}",
}
"""Routes that change something; `POST /v1/check` reads, though its call is that of an apply."""


def route(operation: Operation) -> str:
    return f"{operation.method} {operation.path}"


async def late(on: Handlers, asked: Asked) -> HttpReply:
    raise TimeoutError  # as at the deadline of a call


async def anybody(on: Handlers, request: HttpRequest) -> Any:
    return EVERYBODY


@pytest.mark.parametrize("operation", OPERATIONS, ids=route)
async def test_a_late_call_is_indeterminate_only_if_it_writes(operation: Operation) -> None:
    """A check of documents said that it may have happened, and nobody asks again after that."""
    proof = operation.proof and Proof(lambda on, request: None, anybody)
    slow = replace(operation, answer=late, proof=proof)
    calls = Calls(SilentObserver(), DeadlinePolicy(), Open(), None, NoAuditor())
    parts = {name: text for name, text in GIVEN.items() if name in _fields(operation)}
    request = HttpRequest(operation.method, operation.path, parts, {}, {}, b"rows")
    wanted = Indeterminate if route(operation) in WRITING else DeadlinePassed
    with pytest.raises((Indeterminate, DeadlinePassed)) as refused:
        async with Door(calls, NO_HANDLERS, False)._exchange(slow, request):
            pass
    assert type(refused.value) is wanted


def _fields(operation: Operation) -> tuple[str, ...]:
    return operation.arguments.__struct_fields__


def test_what_readers_may_call_writes_nothing() -> None:
    """Every route that writes is in the list above; none of them is for readers, or a GET."""
    writing = [each for each in OPERATIONS if each.writes]
    assert {route(each) for each in writing} == WRITING
    assert all(each.role > Role.reader and each.method != "GET" for each in writing)
    reading = [each for each in OPERATIONS if not each.writes and each.role > Role.reader]
    assert [route(each) for each in reading] == ["POST /v1/check"]
