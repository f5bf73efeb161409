"""Channels to servers: in the clear, or over TLS; with a token, or a certificate, or neither."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from tidemill.errors import UsageError
from tidemill.rpc.status import METADATA_BYTES_MAX
from tidemill.rpc.tls import TlsFiles, channel_credentials

MESSAGE_BYTES_MAX = 64 << 20

_RETRIED = {
    "tidemill.query.v1.QueryService": (
        "Ask",
        "Snapshot",
        "Tables",
        "Why",
        "WhyNot",
        "Explain",
        "ExplainTimestamp",
        "Translate",
    ),
    "tidemill.catalog.v1.CatalogService": ("Get", "Describe"),
    "tidemill.work.v1.WorkService": ("List",),
}
"""Reads; a write is never tried again here, since it may have happened."""

SERVICE_CONFIG = json.dumps(
    {
        "methodConfig": [
            {
                "name": [
                    {"service": service, "method": method}
                    for service, methods in _RETRIED.items()
                    for method in methods
                ],
                "retryPolicy": {
                    "maxAttempts": 3,
                    "initialBackoff": "0.1s",
                    "maxBackoff": "1s",
                    "backoffMultiplier": 2,
                    "retryableStatusCodes": ["UNAVAILABLE"],
                },
            }
        ],
        "retryThrottling": {"maxTokens": 10, "tokenRatio": 0.1},
    }
)
_OPTIONS: Sequence[tuple[str, int | str]] = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_metadata_size", METADATA_BYTES_MAX),
    ("grpc.absolute_max_metadata_size", METADATA_BYTES_MAX),
    ("grpc.service_config", SERVICE_CONFIG),
    # A server that is away is looked for every two seconds at least; the library would come to wait
    # two minutes.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.http2.max_pings_without_data", 0),
)


@dataclass(frozen=True, slots=True)
class Dialer:
    """Settings of calls to servers. `tls` None is in the clear, and then no token is ever sent.

    `server_name` is the name that certificates are checked for, where addresses are not names.
    `token_file` is read anew for each call, so that a token may be changed without a restart. After
    `silence_s` of silence a server is pinged. A ping without an answer for as long ends the call as
    Unavailable: a machine that went away closes no connection.
    """

    tls: TlsFiles | None = None
    server_name: str = ""
    token_file: Path | None = None
    silence_s: float = 15.0

    def checked(self) -> Dialer:
        """This, if its files can be used. Raises: UsageError that names what is wrong."""
        if self.tls is not None:
            self.tls.checked()
        if self.token_file is not None:
            read_token(self.token_file)
            if self.tls is None:
                raise UsageError(
                    "a token is only sent over TLS: name the authority of the server with --tls-ca",
                    reason="tls",
                )
        return self

    def channel(self, address: str) -> grpc.aio.Channel:
        """A channel; nothing is connected yet. Raises: UsageError for files that cannot be used."""
        silence_ms = int(self.silence_s * 1000)
        options = [
            *_OPTIONS,
            ("grpc.keepalive_time_ms", silence_ms),
            ("grpc.keepalive_timeout_ms", silence_ms),
            ("grpc.http2.ping_timeout_ms", silence_ms),
        ]
        if self.tls is None:
            return grpc.aio.insecure_channel(address, options=options)
        if self.server_name:
            options.append(("grpc.ssl_target_name_override", self.server_name))
        credentials = channel_credentials(self.tls)
        if self.token_file is not None:
            token = grpc.metadata_call_credentials(_TokenOf(self.token_file), name="token")
            credentials = grpc.composite_channel_credentials(credentials, token)
        return grpc.aio.secure_channel(address, credentials, options=options)


IN_THE_CLEAR = Dialer()


class _TokenOf(grpc.AuthMetadataPlugin):
    """The token of a file as the metadata of each call."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __call__(self, context: Any, callback: Callable[[Any, Exception | None], None]) -> None:
        try:
            callback((("authorization", f"Bearer {read_token(self._file)}"),), None)
        except UsageError as error:
            callback((), error)


def read_token(file: Path) -> str:
    """The token in a file. Raises: UsageError, which never says what the file holds."""
    try:
        text = file.read_text().strip()
    except OSError as error:
        raise UsageError(
            f"the token file {file} cannot be read: {error.strerror}", reason="token"
        ) from error
    if not text or not text.isascii() or len(text.split()) != 1:
        raise UsageError(f"the token file {file} holds no token: one word of ASCII", reason="token")
    return text
