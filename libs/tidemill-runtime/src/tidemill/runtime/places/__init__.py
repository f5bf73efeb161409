"""Places that resources may name: files, addresses, topics, secrets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tidemill.errors import UsageError
from tidemill.runtime.places.egress import (
    ANYWHERE,
    Egress,
    EgressRefused,
    HostRule,
    host_rule,
    is_loopback,
)
from tidemill.runtime.places.files import ANY_FILE, ANY_SINK, Files, private_files
from tidemill.runtime.places.settings import PlaceSettings

__all__ = [
    "ANYWHERE", "ANY_FILE", "ANY_SINK", "Egress", "EgressRefused", "Files", "PlaceSettings", "Places", "Secret",
    "Topics", "is_loopback", "places_of",
]  # fmt: skip

SECRET_BYTES_MAX = 64 << 10


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret by its name; what it is stands in its file alone."""

    name: str
    file: Path
    hosts: tuple[HostRule, ...] = ()

    def text(self) -> str:
        """The present content of the file, without its line end.

        Raises: UsageError that names the secret alone.
        """
        try:
            with self.file.open("rb") as file:
                data = file.read(SECRET_BYTES_MAX + 1)
            text = data.decode().strip("\r\n")
        except OSError as error:
            raise self._refused(f"cannot be read: {error.strerror}") from error
        except UnicodeDecodeError:
            raise self._refused("is no UTF-8 text") from None
        if not text or len(data) > SECRET_BYTES_MAX:
            raise self._refused(
                "is empty" if not text else f"has more than {SECRET_BYTES_MAX} bytes"
            )
        return text

    def _refused(self, says: str) -> UsageError:
        return UsageError(f"the file of the secret {self.name} {says}", reason="Secret")


@dataclass(frozen=True, slots=True)
class Topics:
    """Topics that `patterns` name, all of them if these are None; `setting` is where they stand."""

    setting: str
    patterns: tuple[str, ...] | None = None

    def check(self, topic: str) -> None:
        """Raises: UsageError if resources may not name the topic, for what is done here."""
        if self.patterns is None or any(_names(each, topic) for each in self.patterns):
            return
        raise UsageError(
            f"the topic {topic} is refused: {self.setting} does not name it", reason="Topic"
        )


def _names(pattern: str, topic: str) -> bool:
    return topic == pattern or (pattern.endswith("*") and topic.startswith(pattern[:-1]))


@dataclass(frozen=True, slots=True)
class Places:
    """Admissible places of resources.

    The default is open, for a process on loopback that is alone.
    """

    read: Files = ANY_FILE
    write: Files = ANY_SINK
    egress: Egress = ANYWHERE
    topics_read: Topics = Topics("places.topics.read")
    topics_written: Topics = Topics("places.topics.write")
    secrets: Mapping[str, Secret] = field(default_factory=dict)
    clear_text: tuple[HostRule, ...] = ()

    def secret(self, name: str) -> Secret:
        """A secret that a resource names. Raises: UsageError that says what to set."""
        found = self.secrets.get(name)
        if found is None:
            known = ", ".join(sorted(self.secrets)) or "none"
            raise UsageError(
                f"there is no secret {name} (there is {known}): set places.secrets.{name}.file",
                reason="Secret",
            )
        return found

    def sending(self, *names: str) -> Egress:
        """Egress of connections over which these secrets travel. Raises: UsageError."""
        egress = self.egress
        for name in names:
            egress = egress.with_secret(name, self.secret(name).hosts)
        return egress

    def check_clear(self, host: str, port: int, what: str) -> None:
        """Raises: UsageError if a password would travel unencrypted to where nobody has said it
        may.
        """
        if is_loopback(host) or any(rule.names(host, port) for rule in self.clear_text):
            return
        raise UsageError(
            f"{what} would travel unencrypted to {host}:{port}: use TLS, or name the host in "
            "places.clear_text",
            reason="ClearText",
        )


def places_of(
    settings: PlaceSettings, *, open_unless_set: bool, directory: Path, private: Sequence[Path]
) -> Places:
    """Places that settings allow. `private` are files of the process itself. Raises: UsageError."""
    secrets = {
        name: Secret(name, Path(told.file), tuple(host_rule(host) for host in told.hosts))
        for name, told in settings.secrets.items()
    }
    own = [*private, *(secret.file for secret in secrets.values())]
    closed, files = private_files(directory, own)

    def chosen(told: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return told if told is not None else None if open_unless_set else ()

    def folders(setting: str, told: tuple[str, ...] | None) -> Files:
        given = chosen(told)
        if given is None:
            return Files(setting, None, closed, files)
        for folder in given:
            _check_folder(setting, Path(folder), closed)
        return Files(setting, tuple(Path(folder) for folder in given), closed, files)

    rules = chosen(settings.egress)
    return Places(
        folders("places.files.read", settings.files.read),
        folders("places.files.write", settings.files.write),
        Egress(None if rules is None else tuple(host_rule(rule) for rule in rules)),
        Topics("places.topics.read", chosen(settings.topics.read)),
        Topics("places.topics.write", chosen(settings.topics.write)),
        secrets,
        tuple(host_rule(rule) for rule in settings.clear_text),
    )


def _check_folder(setting: str, folder: Path, closed: Sequence[Path]) -> None:
    found = folder.resolve()
    for each in closed:
        if found == each or each in found.parents:
            raise UsageError(
                f"{setting} names {folder}, which is in {each}: state, keys and settings are no data",
                reason="places",
            )
