"""docs/reference/http.md: every route, what a body may be, and the statuses of refusals."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tidemill.runtime import http_guard, http_problems
from tidemill.testkit.reference.pages import code, first_line, head, paragraphs, table
from tidemill_query.web.door import Operation
from tidemill_query.web.openapi import OPERATIONS, document


def _modules(root: Path) -> Iterator[ast.Module]:
    for file in sorted([*root.glob("libs/*/src/**/*.py"), *root.glob("services/*/src/**/*.py")]):
        text = file.read_text()
        if "add_route(" in text or "HttpRequest" in text:
            yield ast.parse(text)


def routes(root: Path) -> Iterator[tuple[str, str, str]]:
    """Method, path and the handler's docstring of each `add_route` in the sources.

    Raises: LookupError for a handler without a docstring.
    """
    modules = list(_modules(root))
    said = {
        node.name: ast.get_docstring(node)
        for module in modules
        for node in ast.walk(module)
        if isinstance(node, ast.AsyncFunctionDef)
    }
    for module in modules:
        for call in ast.walk(module):
            match call:
                case ast.Call(
                    func=ast.Attribute(attr="add_route"),
                    args=[
                        ast.Constant(value=str(method)),
                        ast.Constant(value=str(path)),
                        ast.Attribute(attr=handler) | ast.Name(id=handler),
                        *_,
                    ],
                ):
                    meaning = said.get(handler)
                    if meaning is None:
                        raise LookupError(f"{handler}, the route of {path}, has no docstring")
                    yield method, path, meaning


def _refusals(root: Path) -> Iterator[tuple[str, str, str]]:
    """Status, error and meaning of what is refused before a route is asked."""
    for error, status in http_problems.STATUSES:
        yield str(status), code(error.__name__), first_line(error)


def _operation(each: Operation, told: dict[str, Any]) -> Iterator[str]:
    """One call: its meaning, its name over gRPC, its arguments and types."""
    yield f"## {each.method} {each.path}"
    yield from paragraphs(inspect.getdoc(each.answer) or "")
    service, _, call = each.call.rpartition("/")
    yield ""
    yield f"The call `{call}` of `{service[1:]}`, for the role {each.role.name}."
    rows = [
        (code(one["name"]), one["in"], code(_kind(one["schema"])), "yes" if one["required"] else "")
        for one in told["parameters"]
    ]
    if rows:
        yield from ("", *table(("argument", "in", "type", "needed"), rows))
    for what, kinds in (("Body", each.takes), ("Answer", each.gives)):
        if kinds:
            yield from paragraphs(f"{what}: {', '.join(map(code, kinds))}.")
    yield ""


def _kind(schema: dict[str, Any]) -> str:
    """The type of a schema, in a word."""
    if "anyOf" in schema:
        return " or ".join(_kind(one) for one in schema["anyOf"] if one != {"type": "null"})
    inner = f" of {_kind(schema['items'])}" if "items" in schema else ""
    return f"{schema['type']}{inner}"


def page(root: Path) -> str:
    """The whole page, from the sources of a checkout."""
    lines = head(
        "HTTP",
        "A process serves these routes at `http_host` and `http_port` of its "
        "[settings](settings.md). "
        "An error is a problem (RFC 9457): `title` says what the caller does next, `detail` what was "
        "tried, and `advice` what to write instead. Details of the error are further members. A route "
        "of GET answers HEAD as well, without a body. The calls of users ask for a token "
        "(`Authorization: Bearer`) where gRPC does, and count in its metrics and limits.",
    )
    paths = document()["paths"]
    for method, path, meaning in routes(root):
        lines += [f"## {method} {path}", *paragraphs(meaning), ""]
    for each in OPERATIONS:
        lines += _operation(each, paths[each.path][each.method.lower()])
    kinds = sorted(http_guard.ROWS)
    lines += ["## Content types of rows", ""]
    lines += ["A body of rows names one of these types, or none.", ""]
    lines += [f"* `{kind}`" for kind in kinds]
    lines += [
        "",
        "## Statuses",
        "",
        "The first line whose error fits decides.",
        "",
    ]
    lines += table(("status", "error", "what the caller does next"), _refusals(root))
    lines += ["", "A refusal of a request's form is one of these.", ""]
    lines += table(
        ("status", "when"), ((str(s), says) for s, says in http_problems.FORM_STATUSES.items())
    )
    return "\n".join(lines) + "\n"
