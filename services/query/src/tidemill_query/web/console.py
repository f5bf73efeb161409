"""The console: pages of this package, for a browser that asks the calls of the same port.

The pages have no secret and ask for no token: a token is typed into them and sent with each call.
No page runs a script, or loads anything, that is not from this server.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from importlib.resources import files

from tidemill.runtime.http_messages import HttpReply, HttpRequest
from tidemill.runtime.http_problems import form_problem
from tidemill.runtime.http_server import HttpServer

PAGE = "index.html"

KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""Content types by the ending of a file; files of other endings are not served."""

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
"""Content policy of every page: no inline script or style, no frame, no text as markup."""

HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-cache",
}


@dataclass(frozen=True, slots=True)
class _File:
    kind: str
    data: bytes
    tag: str


class Console:
    """The files of the console, read once."""

    def __init__(self) -> None:
        self._files = dict(_read())

    def add_to(self, http: HttpServer) -> None:
        """Answer with the pages from now on."""
        http.add_route("GET", "/", self.show_console)
        http.add_route("GET", "/console/{file}", self.show_file)

    async def show_console(self, request: HttpRequest) -> HttpReply:
        """The console, for a browser; it asks for no token itself."""
        return self._reply(PAGE, request.sent)

    async def show_file(self, request: HttpRequest) -> HttpReply:
        """A script or style of the console."""
        name = request.parts["file"]
        if name not in self._files:
            return form_problem(404, f"the console has no file {name[:100]}")
        return self._reply(name, request.sent)

    def _reply(self, name: str, sent: Mapping[str, str]) -> HttpReply:
        found = self._files[name]
        headers = {**HEADERS, "ETag": found.tag}
        if sent.get("if-none-match") == found.tag:
            return HttpReply(304, headers=headers)
        return HttpReply(200, found.data, found.kind, headers)


def _read() -> list[tuple[str, _File]]:
    found = []
    for each in files("tidemill_query").joinpath("console").iterdir():
        kind = KINDS.get("." + each.name.rpartition(".")[2])
        if kind is not None:
            data = each.read_bytes()
            tag = f'"{blake2b(data, digest_size=12).hexdigest()}"'
            found.append((each.name, _File(kind, data, tag)))
    return found
