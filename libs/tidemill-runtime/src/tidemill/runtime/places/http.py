"""Connections of aiohttp, made only where they may be: looked at when the address of a name is
known.
"""

from __future__ import annotations

import ssl
from functools import partial

import aiohttp

from tidemill.runtime.addresses import host_and_port
from tidemill.runtime.places.egress import Egress


def said(error: Exception) -> str:
    """Why a request has failed, without what the other end has said: it may repeat what it was
    sent.
    """
    answered = (aiohttp.ClientResponseError, aiohttp.ClientPayloadError, aiohttp.InvalidURL)
    return type(error).__name__ if isinstance(error, answered) or not str(error) else str(error)


def gated_connector(
    url: str, egress: Egress, tls: ssl.SSLContext | None = None
) -> aiohttp.TCPConnector:
    """A connector to the host of a URL, and to no other one: redirects have to be off.

    Raises: UsageError if nothing allows the host, whatever address it has.
    """
    host, port = host_and_port(url, 80)
    egress.check_name(host, port)
    return aiohttp.TCPConnector(
        ssl=tls or True, socket_factory=partial(egress.socket_at, host, port), use_dns_cache=False
    )
