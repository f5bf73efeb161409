"""Address of the server and credentials of the caller, from the environment."""

from __future__ import annotations

import os
from dataclasses import dataclass

from tidemill.errors.variables import refuse_unknown_variables

ADDRESS_VARIABLE = "TIDEMILL_ADDRESS"
"""Server to call, host:port; 127.0.0.1:7474 if it is not set."""
ADDRESS_DEFAULT = "127.0.0.1:7474"
TLS_CA_VARIABLE = "TIDEMILL_TLS_CA"
"""File with the authority of the server's certificate, or `system` for those of this machine."""
TLS_CERT_VARIABLE = "TIDEMILL_TLS_CERT"
"""File with the certificate of the caller."""
TLS_KEY_VARIABLE = "TIDEMILL_TLS_KEY"
"""File with the key of the caller's certificate."""
TLS_NAME_VARIABLE = "TIDEMILL_TLS_NAME"
"""Name that the server's certificate is for, if the address is another."""
TOKEN_FILE_VARIABLE = "TIDEMILL_TOKEN_FILE"
"""File with the token of the caller."""


@dataclass(frozen=True, slots=True)
class ServerAccess:
    """A server and the files for calling it; an empty one is none.

    Secrets are never in it, only their files.
    """

    address: str
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_name: str = ""
    token_file: str = ""


def check_environment() -> None:
    """Refuse variables of this process that no command knows. Raises: SystemExit with status 2."""
    refuse_unknown_variables(os.environ)


def address_from_environment() -> str:
    """The address in `TIDEMILL_ADDRESS`, else that of a server on this machine."""
    return os.environ.get(ADDRESS_VARIABLE) or ADDRESS_DEFAULT


def place_from_environment(
    address: str | None = None,
    tls_ca: str | None = None,
    tls_cert: str | None = None,
    tls_key: str | None = None,
    tls_name: str | None = None,
    token_file: str | None = None,
) -> ServerAccess:
    """The given values, and for each that is None the one of the environment."""
    return ServerAccess(
        address or address_from_environment(),
        tls_ca or os.environ.get(TLS_CA_VARIABLE, ""),
        tls_cert or os.environ.get(TLS_CERT_VARIABLE, ""),
        tls_key or os.environ.get(TLS_KEY_VARIABLE, ""),
        tls_name or os.environ.get(TLS_NAME_VARIABLE, ""),
        token_file or os.environ.get(TOKEN_FILE_VARIABLE, ""),
    )
