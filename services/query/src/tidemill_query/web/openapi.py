"""The operations as a document of OpenAPI 3.1, made of the types by which they are decoded."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import version
from typing import Any

import msgspec

from tidemill.rpc.identity import Role
from tidemill.runtime.http_messages import HttpReply, HttpRequest
from tidemill.runtime.http_problems import FORM_STATUSES, PROBLEM, STATUSES
from tidemill_query.web.commands import COMMANDS
from tidemill_query.web.door import Operation
from tidemill_query.web.following import FOLLOWING
from tidemill_query.web.forms import JSON, json_of
from tidemill_query.web.reading import READING
from tidemill_query.web.webhooks import WEBHOOKS

OPERATIONS = (*READING, *FOLLOWING, *COMMANDS, *WEBHOOKS)
"""Every call that HTTP offers."""

_REFERENCE = "#/components/schemas/{name}"
_REFUSED = {"$ref": "#/components/responses/Problem"}


class Problem(msgspec.Struct, frozen=True):
    """A refusal or a failure (RFC 9457), with the details of the error as further members.

    `title` says what the caller does next.
    """

    type: str
    title: str
    status: int
    detail: str


def document() -> dict[str, Any]:
    """The whole document, as JSON can hold it."""
    types = {
        kind
        for each in OPERATIONS
        for kind in (each.arguments, *each.gives.values(), *each.takes.values())
        if kind is not None
    }
    named = sorted([*types, Problem], key=repr)
    schemas, components = msgspec.json.schema_components(named, ref_template=_REFERENCE)
    of = dict(zip(map(repr, named), schemas, strict=True))
    arguments = {each.arguments.__name__ for each in OPERATIONS}
    paths: dict[str, dict[str, Any]] = {}
    for each in OPERATIONS:
        told = components[each.arguments.__name__]
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(each, told, of)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Tidemill",
            "version": version("tidemill-query"),
            "description": "Exact answers as of an instant, and the calls that make them.",
        },
        "paths": paths,
        "components": {
            "schemas": {n: s for n, s in components.items() if n not in arguments},
            "responses": {"Problem": _problem(of[repr(Problem)])},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def _operation(
    each: Operation, arguments: Mapping[str, Any], of: Mapping[str, Any]
) -> dict[str, Any]:
    says = inspect.getdoc(each.answer) or ""
    done = {"204": {"description": "Done."}} if each.method == "DELETE" else {
        "200": {
            "description": inspect.getdoc(each.arguments) or "",
            "content": _content(each.gives, of),
        }
    }  # fmt: skip
    unchanged = {"304": {"description": "The caller has it."}} if len(each.gives) > 1 else {}
    found: dict[str, Any] = {
        "operationId": each.answer.__name__,
        "summary": says.partition("\n")[0],
        "description": f"{says}\n\nRole: {each.role.name}." if each.role > Role.reader else says,
        "parameters": list(_parameters(each, arguments)),
        "responses": {
            **done, **unchanged, **dict.fromkeys(map(str, _statuses(each)), _REFUSED),
        },
    }  # fmt: skip
    if each.proof is not None:
        found["security"] = []
    if each.takes:
        found["requestBody"] = {"required": True, "content": _content(each.takes, of)}
    return found


def _content(kinds: Mapping[str, object], of: Mapping[str, Any]) -> dict[str, Any]:
    return {
        kind: {} if told is None else {"schema": of[repr(told)]} for kind, told in kinds.items()
    }


def _parameters(each: Operation, arguments: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    needed = arguments.get("required", ())
    for name, schema in arguments["properties"].items():
        in_path = f"{{{name}}}" in each.path
        yield {
            "name": name,
            "in": "path" if in_path else "query",
            "required": name in needed,
            "schema": schema,
        }


def _statuses(each: Operation) -> list[int]:
    """Statuses of refusals, without those of a body where there is none."""
    of_bodies = set() if each.takes else {408, 413, 415}
    found = {status for _, status in STATUSES} | set(FORM_STATUSES)
    return sorted(found - of_bodies - {404, 405} | {404})


def _problem(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "description": "The call is refused, or has failed; the problem says what to do next.",
        "content": {PROBLEM: {"schema": schema}},
    }


@cache
def _text() -> bytes:
    return json_of(document()) + b"\n"


async def show_openapi(request: HttpRequest) -> HttpReply:
    """This interface as a document of OpenAPI 3.1; it asks for no token."""
    return HttpReply(200, _text(), JSON, {"Cache-Control": "no-cache"})
