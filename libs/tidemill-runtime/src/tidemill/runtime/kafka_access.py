"""How a Kafka cluster is reached: in the clear or over TLS, with or without saying who asks."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiokafka.errors import KafkaConnectionError

from tidemill.runtime.resources.specs import KafkaOrigin, KafkaTls
from tidemill.time.errors import UsageError


@dataclass(frozen=True, slots=True)
class KafkaLogin:
    """Who asks; the password is no part of what is shown."""

    mechanism: str
    username: str
    password: str

    def __repr__(self) -> str:
        return f"KafkaLogin({self.mechanism!r}, {self.username!r})"


@dataclass(frozen=True, slots=True)
class KafkaAccess:
    """What every client of a cluster is opened with, beside its address."""

    tls: ssl.SSLContext | None = None
    login: KafkaLogin | None = None

    def options(self) -> dict[str, Any]:
        """The options of an aiokafka client."""
        transport = "PLAINTEXT" if self.tls is None else "SSL"
        if self.login is None:
            return {"security_protocol": transport, "ssl_context": self.tls}
        return {
            "security_protocol": f"SASL_{transport}",
            "ssl_context": self.tls,
            "sasl_mechanism": self.login.mechanism,
            "sasl_plain_username": self.login.username,
            "sasl_plain_password": self.login.password,
        }

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Say what may be wrong when no broker is reached: the client tells its log alone."""
        try:
            yield
        except KafkaConnectionError as error:
            if self.login is None and self.tls is None:
                raise
            doubts = [] if self.login is None else [f"the password of {self.login.username}"]
            doubts += [] if self.tls is None else ["the certificates"]
            raise KafkaConnectionError(f"{error} (check {' and '.join(doubts)})") from error


def access_of(origin: KafkaOrigin) -> KafkaAccess:
    """What a source says of its cluster; files are read now. Raises: UsageError if one cannot be."""
    login = None
    if origin.sasl is not None:
        password = _text(origin.sasl.password_file, "password").strip("\r\n")
        login = KafkaLogin(origin.sasl.mechanism, origin.sasl.username, password)
    return KafkaAccess(None if origin.tls is None else _context(origin.tls), login)


def _context(tls: KafkaTls) -> ssl.SSLContext:
    try:
        if tls.ca_file is None:
            context = ssl.create_default_context()
        else:
            context = trusting(tls.ca_file, _text(tls.ca_file, "certificates of authorities"))
        if tls.certificate_file is not None:
            for path in (tls.certificate_file, tls.key_file or tls.certificate_file):
                _text(path, "certificate or key")
            context.load_cert_chain(tls.certificate_file, tls.key_file)
    except ssl.SSLError as error:
        raise UsageError(f"TLS with Kafka: {error}", reason="tls") from error
    return context


def trusting(path: str, text: str) -> ssl.SSLContext:
    """A context that trusts the certificates of a file alone. Raises: UsageError if it has none."""
    try:
        return ssl.create_default_context(cadata=text)
    except (
        ssl.SSLError,
        TypeError,
        ValueError,
    ) as error:  # TypeError: a character that is no ASCII
        said = "no PEM certificate is in it" if isinstance(error, ssl.SSLError) else str(error)
        raise UsageError(
            f"the certificates of authorities in {path} cannot be read: {said}", reason="tls"
        ) from None


def _text(path: str, what: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # ValueError: no UTF-8, or a NUL in the path
        said = getattr(error, "strerror", None) or error
        raise UsageError(
            f"the {what} in {path!r} cannot be read: {said}", reason="FileMissing"
        ) from error
