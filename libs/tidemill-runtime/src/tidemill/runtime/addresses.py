"""Addresses as they may be shown: to people who may see where something goes, and not by which
secret.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from tidemill.errors import UsageError

_PLACE = re.compile(r"([^\s:/\[\]]*|\[[0-9A-Fa-f:.%]+\]):([0-9]{1,5})")
_SCHEMES = ("unix:", "unix-abstract:", "dns:", "ipv4:", "ipv6:")
PORT_MAX = 65_535


def refuse_no_address(name: str, text: str) -> None:
    """Refuse what is no HOST:PORT: gRPC would listen on another port, or look for another host.

    Targets of gRPC with a scheme pass. Raises: UsageError that names the setting, or the option.
    """
    found = _PLACE.fullmatch(text)
    if text.startswith(_SCHEMES) or (found is not None and int(found[2]) <= PORT_MAX):
        return
    raise UsageError(
        f"{name} {text!r} is no address: write HOST:PORT, such as 127.0.0.1:7474, with a port up to "
        f"{PORT_MAX}",
        reason="address",
    )


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
