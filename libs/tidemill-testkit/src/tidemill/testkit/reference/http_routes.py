"""docs/reference/http.md: every route, what a body may be, and the statuses of refusals."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tidemill.runtime import http_guard, http_server
from tidemill.testkit.reference.pages import code, first_line, head, paragraphs, table


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
                        ast.Attribute(attr=handler),
                        *_,
                    ],
                ):
                    meaning = said.get(handler)
                    if meaning is None:
                        raise LookupError(f"{handler}, the route of {path}, has no docstring")
                    yield method, path, meaning


def _refusals(root: Path) -> Iterator[tuple[str, str, str]]:
    """Status, error and meaning of what is refused before a route is asked."""
    for error, status in http_server.STATUSES:
        yield str(status), code(error.__name__), first_line(error)


def page(root: Path) -> str:
    """The whole page, from the sources of a checkout."""
    lines = head(
        "HTTP",
        "A process serves these routes at `http_host` and `http_port` of its "
        "[settings](settings.md). "
        "Errors are JSON with the members `error` and `message`.",
    )
    for method, path, meaning in routes(root):
        lines += [f"## {method} {path}", *paragraphs(meaning), ""]
    kinds = sorted(http_guard.ROWS)
    lines += ["## Content types of rows", ""]
    lines += ["A body of rows names one of these types, or none.", ""]
    lines += [f"* `{kind}`" for kind in kinds]
    lines += [
        "",
        "## Statuses",
        "",
        "The first line whose error fits decides; any other error is 500.",
        "",
    ]
    lines += table(("status", "error", "what the caller does next"), _refusals(root))
    lines += ["", "A refusal of a request's form is one of these.", ""]
    lines += table(
        ("status", "when"), ((str(s), says) for s, says in http_server.FORM_STATUSES.items())
    )
    return "\n".join(lines) + "\n"
