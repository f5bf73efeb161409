"""Addresses as they may be shown: to people who may see where something goes, and not by which
secret.
"""

from __future__ import annotations

from urllib.parse import urlsplit


def bare_url(text: object) -> str:
    """A URL without user, password, query and fragment; what is none, without what may be these."""
    try:
        url = urlsplit(str(text))
        host, path = url.netloc.rpartition("@")[2], url.path.rpartition("@")[2]
    except ValueError:
        return str(text).rpartition("@")[2].partition("?")[0]
    return f"{url.scheme}://{host}{path}" if url.scheme and url.netloc else path


def host_and_port(text: str, default: int) -> tuple[str, int]:
    """Host and port of a URL, or of HOST:PORT. Raises: ValueError."""
    url = urlsplit(text if "://" in text else f"//{text}")
    standard = {"http": 80, "https": 443, "redis": 6379, "rediss": 6379}
    return url.hostname or "", url.port or standard.get(url.scheme, default)
