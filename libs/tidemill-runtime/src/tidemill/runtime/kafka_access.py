"""Access to a Kafka cluster: in the clear or over TLS, with or without login, within egress.

A cluster is described by a KafkaPlace: names of files, which may go to a job, and never their
content.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from aiokafka.errors import KafkaConnectionError

from tidemill.errors import UsageError
from tidemill.runtime.addresses import host_and_port
from tidemill.runtime.kafka_gate import GatedId
from tidemill.runtime.places import Egress, Places, Secret
from tidemill.runtime.resources.specs import KafkaOrigin

KAFKA_PORT = 9092


class KafkaFiles(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """TLS and login of a cluster, as settings of a process: files, which are read anew for each
    client."""

    tls: bool = False
    """Speak TLS with the brokers, also where no file is named."""

    authority: str = ""
    """File with the certificates of the authorities to trust, as PEM; empty trusts those of the
    machine."""

    certificate: str = ""
    """File with the certificate of this end, as PEM."""

    key: str = ""
    """File with the key of the certificate, as PEM."""

    mechanism: str = ""
    """Mechanism of the login: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512; empty is no login."""

    username: str = ""
    """Name of the login."""

    password_file: str = ""
    """File with the password of the login and nothing else."""

    @property
    def encrypted(self) -> bool:
        """Whether TLS is spoken."""
        return bool(self.tls or self.authority or self.certificate)


class KafkaPlace(msgspec.Struct, frozen=True):
    """A topic, and how its brokers are reached: what a job is told, with the names of files alone.

    `egress` is where the brokers of a source may be; those of the own log are what settings say.
    """

    topic: str
    bootstrap: str = ""
    files: KafkaFiles = KafkaFiles()
    egress: Egress | None = None


@dataclass(frozen=True, slots=True)
class KafkaLogin:
    """Login at a cluster; representations leave the password out."""

    mechanism: str
    username: str
    password: str

    def __repr__(self) -> str:
        return f"KafkaLogin({self.mechanism!r}, {self.username!r})"


@dataclass(frozen=True, slots=True)
class KafkaAccess:
    """Options of every client of a cluster, beside its address."""

    tls: ssl.SSLContext | None = None
    login: KafkaLogin | None = None
    egress: Egress | None = None

    def client_id(self, name: str) -> str:
        """The name of a client, by which its connections find where they may go."""
        return name if self.egress is None else GatedId(name, self.egress)

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


def kafka_files(origin: KafkaOrigin, places: Places) -> KafkaFiles:
    """The files of the secrets that a source names. Raises: UsageError if it may not name, or send,
    one."""
    tls, sasl = origin.tls, origin.sasl

    def file(name: str | None) -> str:
        return "" if name is None else str(places.secret(name).file)

    egress = egress_of(origin, places)
    for host, port in brokers_of(origin.bootstrap or ""):
        egress.check_name(host, port)
        if sasl is not None and sasl.mechanism == "PLAIN" and tls is None:
            places.check_clear(host, port, f"the password of {sasl.username}")
    return KafkaFiles(
        tls is not None,
        "" if tls is None else file(tls.authority), "" if tls is None else file(tls.certificate),
        "" if tls is None else file(tls.key),
        "" if sasl is None else sasl.mechanism, "" if sasl is None else sasl.username,
        "" if sasl is None else file(sasl.secret),
    )  # fmt: skip


def egress_of(origin: KafkaOrigin, places: Places) -> Egress:
    """Egress to the brokers of a source, also those that the first ones name.

    Raises: UsageError.
    """
    return places.egress if origin.sasl is None else places.sending(origin.sasl.secret)


def brokers_of(bootstrap: str) -> list[tuple[str, int]]:
    """Hosts and ports of an address of brokers. Raises: UsageError."""
    try:
        return [host_and_port(each.strip(), KAFKA_PORT) for each in bootstrap.split(",")]
    except ValueError as error:
        raise UsageError(f"the brokers {bootstrap} are no addresses: {error}") from error


def access_of(files: KafkaFiles, egress: Egress | None = None) -> KafkaAccess:
    """Access with the present content of the files.

    Raises: UsageError that names an unusable file.
    """
    if bool(files.mechanism) != bool(files.username and files.password_file):
        raise UsageError("mechanism, username and password_file of Kafka go together", reason="tls")
    login = None
    if files.mechanism:
        password = Secret("of Kafka", Path(files.password_file)).text()
        login = KafkaLogin(files.mechanism, files.username, password)
    return KafkaAccess(_context(files) if files.encrypted else None, login, egress)


def _context(files: KafkaFiles) -> ssl.SSLContext:
    return tls_context(files.authority, files.certificate, files.key, "TLS with Kafka")


def tls_context(authority: str, certificate: str, key: str, what: str) -> ssl.SSLContext:
    """A client's end of TLS.

    Raises: UsageError with the name of an unusable file, and nothing of its content.
    """
    try:
        context = ssl.create_default_context(cafile=authority or None)
        if certificate:
            context.load_cert_chain(certificate, key or None)
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        files = ", ".join(each for each in (authority, certificate, key) if each)
        said = getattr(error, "strerror", None) or type(error).__name__
        raise UsageError(f"{what}: {files} cannot be used: {said}", reason="tls") from None
    return context
