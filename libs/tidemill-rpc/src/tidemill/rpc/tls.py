"""Certificates from files, for both ends of a connection, and new ones without a restart.

A server looks at the files when a connection begins, and takes changed files if they are whole.
While a key does not yet belong to its certificate, connections go on with the pair before. A client
looks when it opens a channel, and whenever a connection could not be made.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from tidemill.errors import UsageError


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files: our certificate with its chain, its key, and the authority that the other end must
    be of.

    A server has certificate and key; with an authority it asks everybody for a certificate. A
    client has an authority (None: those of the machine), and a certificate with its key if servers
    ask for one.
    """

    certificate: Path | None = None
    key: Path | None = None
    authority: Path | None = None

    def checked(self) -> TlsFiles:
        """These files, if they can be used now. Raises: UsageError that names the file."""
        if (self.certificate is None) != (self.key is None):
            raise UsageError("TLS: a certificate and its key go together: name both", reason="tls")
        _read(self)
        return self


@dataclass(frozen=True, slots=True)
class _Material:
    certificate: bytes | None
    key: bytes | None
    authority: bytes | None


def _read(files: TlsFiles) -> _Material:
    """The contents, checked for belonging together. Raises: UsageError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    read = {}
    for name in ("certificate", "key", "authority"):
        path: Path | None = getattr(files, name)
        try:
            read[name] = None if path is None else path.read_bytes()
        except OSError as error:
            raise UsageError(
                f"TLS: the {name} {path} cannot be read: {error.strerror}", reason="tls"
            ) from error
    if files.certificate is not None and files.key is not None:
        try:
            context.load_cert_chain(files.certificate, files.key)
        except (ssl.SSLError, ValueError) as error:
            raise UsageError(
                f"TLS: the key {files.key} does not belong to the certificate {files.certificate}, "
                f"or one of them is no PEM file: {getattr(error, 'reason', None) or error}",
                reason="tls",
            ) from error
    if files.authority is not None:
        try:
            context.load_verify_locations(files.authority)
        except (ssl.SSLError, ValueError) as error:
            raise UsageError(
                f"TLS: {files.authority} holds no certificate of an authority", reason="tls"
            ) from error
    return _Material(read["certificate"], read["key"], read["authority"])


def _stamp(files: TlsFiles) -> tuple[tuple[int, int, int], ...]:
    """A value that changes when one of the files is written or replaced."""
    found = []
    for path in (files.certificate, files.key, files.authority):
        if path is not None:
            status = path.stat()
            found.append((status.st_mtime_ns, status.st_ino, status.st_size))
    return tuple(found)


class ServerCredentials:
    """Credentials of a server that follow their files.

    `told` hears of files that cannot be used yet.
    """

    def __init__(self, files: TlsFiles, told: Callable[[str], None] = lambda says: None) -> None:
        self._files = files
        self._told = told
        self._stamp = _stamp(files.checked())
        self.reloads = 0

    def credentials(self) -> grpc.ServerCredentials:
        """Credentials for opening a server. Raises: UsageError without a certificate."""
        if self._files.certificate is None:
            raise UsageError("TLS: a server needs a certificate and its key", reason="tls")
        made: grpc.ServerCredentials = grpc.dynamic_ssl_server_credentials(
            _configured(_read(self._files)),
            self._fetch,
            require_client_authentication=self._files.authority is not None,
        )
        return made

    def _fetch(self) -> Any:
        """The configuration of the next connection; None keeps the one before."""
        try:
            stamp = _stamp(self._files)
            if stamp == self._stamp:
                return None
            material = _read(self._files)
        except (OSError, UsageError) as error:
            self._told(str(error))
            return None
        self._stamp = stamp
        self.reloads += 1
        return _configured(material)


def server_context(files: TlsFiles, told: Callable[[str], None]) -> ssl.SSLContext:
    """TLS of a server that is not gRPC's; it follows its files as `ServerCredentials` do.

    Raises: UsageError without a certificate, or for files that cannot be used.
    """
    if files.certificate is None:
        raise UsageError("TLS: a server needs a certificate and its key", reason="tls")
    seen = [_stamp(files.checked())]
    context = [_context(files)]

    def follow(connection: ssl.SSLObject, _name: str | None, _before: ssl.SSLContext) -> None:
        """Called at the begin of each connection, whether it names a server or not."""
        try:
            stamp = _stamp(files)
            if stamp != seen[0]:
                _read(files)
                context[0], seen[0] = _context(files), stamp
        except (OSError, UsageError) as error:
            told(str(error))
        connection.context = context[0]

    first = context[0]
    first.sni_callback = follow
    return first


def _context(files: TlsFiles) -> ssl.SSLContext:
    assert files.certificate is not None
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.load_cert_chain(files.certificate, files.key)
    if files.authority is not None:
        made.load_verify_locations(files.authority)
        made.verify_mode = ssl.CERT_REQUIRED
    return made


def _configured(material: _Material) -> Any:
    assert material.key is not None
    assert material.certificate is not None
    return grpc.ssl_server_certificate_configuration(
        [(material.key, material.certificate)], root_certificates=material.authority
    )


def channel_credentials(files: TlsFiles) -> grpc.ChannelCredentials:
    """Credentials of a client, as the files are now. Raises: UsageError."""
    material = _read(files.checked())
    return grpc.ssl_channel_credentials(
        root_certificates=material.authority,
        private_key=material.key,
        certificate_chain=material.certificate,
    )
