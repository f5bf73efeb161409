"""Refusal of requests that a page in a browser has made, before their body is read.

A page of another site may send requests to a port that its reader reaches. By a name that changes
its address (DNS rebinding) it may also read the answers. Neither may push rows or read metrics.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

ROWS = frozenset(
    {"application/json", "application/x-ndjson", "application/jsonl", "application/json-seq",
     "application/csv", "text/csv"}
)  # fmt: skip
"""Content types of a body of rows; a page of another site cannot send them without asking first."""

DOCUMENTS = frozenset({"application/yaml", "application/x-yaml", "text/yaml"})
"""Content types of a body of resources, likewise."""

UNSAID = frozenset({"", "application/x-www-form-urlencoded", "application/octet-stream"})
"""Content types that curl and its like send by default; taken for rows unless a browser sent
them.
"""

_BROWSERS = ("origin", "referer", "sec-fetch-site")


def is_loopback(host: str) -> bool:
    """Whether an address to listen on, or a name in a URL, is of this machine alone."""
    bare = host.strip("[]").lower().rstrip(".")
    if bare == "localhost" or bare.endswith(".localhost") or host.startswith("unix"):
        return True
    address = _address(bare)
    return address is not None and address.is_loopback


def _address(bare: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(bare)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class HttpGuard:
    """Conditions on requests.

    `names` are hosts by which the server may be asked; None is any.

    With `numbers` it may be asked by any address as a number, which no page of another name has.
    """

    names: frozenset[str] | None = None
    numbers: bool = False

    def refusal(self, method: str, headers: Mapping[str, str]) -> tuple[int, str] | None:
        """Status and reason of a refusal; None for a request that may be.

        Names of headers in lower case.
        """
        host = headers.get("host", "")
        if self.names is not None and not self._may_be_asked_by(host):
            return 403, (
                f"the host {host[:200]!r} is none of this server's: ask it by localhost, or add the "
                "name to http_names"
            )
        if not _is_followed(method, headers) and _is_foreign(host, headers):
            return 403, "a page of another origin may not ask this server"
        if method not in ("GET", "HEAD"):
            return _typed(headers)
        return None

    def _may_be_asked_by(self, host: str) -> bool:
        assert self.names is not None
        name = urlsplit(f"//{host}").hostname if _parses(host) else None
        if name is None:
            return False
        bare = name.lower().rstrip(".")
        if is_loopback(bare) or bare in self.names:
            return True
        return self.numbers and _address(bare) is not None


def _parses(host: str) -> bool:
    try:
        urlsplit(f"//{host}")
    except ValueError:
        return False
    return bool(host) and not set(host) & set("/?#@\\ ")


def _is_foreign(host: str, headers: Mapping[str, str]) -> bool:
    """Whether the request says that it comes from a page that this server has not given."""
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return True
    origin = headers.get("origin")
    return origin is not None and origin.partition("://")[2].lower() != host.lower()


def _is_followed(method: str, headers: Mapping[str, str]) -> bool:
    """Whether somebody followed a link: the page with the link reads nothing of the answer."""
    return (
        method in ("GET", "HEAD")
        and "origin" not in headers
        and headers.get("sec-fetch-mode") == "navigate"
        and headers.get("sec-fetch-dest") == "document"
    )


def _typed(headers: Mapping[str, str]) -> tuple[int, str] | None:
    """The refusal of a body that a form of a page may have sent; None if it is no such body."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    browser = any(name in headers for name in _BROWSERS)
    if kind in ROWS | DOCUMENTS or (kind in UNSAID and not browser):
        return None
    empty = headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers
    if empty and not kind:
        return None
    return 415, (
        f"the content type {kind[:100]!r} is none of rows: say application/json, application/x-ndjson "
        "or text/csv; or application/yaml for resources"
    )
