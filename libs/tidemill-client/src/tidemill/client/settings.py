"""Where the client looks for its server."""

from __future__ import annotations

import os

ADDRESS_VARIABLE = "TIDEMILL_ADDRESS"
ADDRESS_DEFAULT = "127.0.0.1:7474"


def address_from_environment() -> str:
    """The address in `TIDEMILL_ADDRESS`, else that of a server on this machine."""
    return os.environ.get(ADDRESS_VARIABLE) or ADDRESS_DEFAULT
