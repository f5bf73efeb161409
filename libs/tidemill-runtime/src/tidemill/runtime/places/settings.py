"""Places of resources, as settings of a process."""

from __future__ import annotations

import msgspec


class FileSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Folders of files, with everything below them. Links that lead out of one are refused."""

    read: tuple[str, ...] | None = None
    """Folders whose files sources may read.

    Not set: none, or all where the process is on loopback and alone.
    """

    write: tuple[str, ...] | None = None
    """Folders in which sinks may write. Not set: likewise."""


class TopicSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Topics of the own log and of brokers; `*` at the end stands for any rest."""

    read: tuple[str, ...] | None = None
    """Topics that sources may read. Not set: none, or all where the process is on loopback and
    alone."""

    write: tuple[str, ...] | None = None
    """Topics that sinks, and rows pushed to a source over a topic, are written to. Not set:
    likewise."""


class SecretSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A secret that resources name and never see."""

    file: str
    """File with the secret and nothing else, read anew for each connection."""

    hosts: tuple[str, ...] = ()
    """Addresses to which the secret may be sent, as in `egress`.

    Empty is none, which fits certificates of authorities.
    """


class PlaceSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Files, secrets, addresses and topics that resources may name.

    A place that is not set is closed, unless the process is bound to loopback and alone: without
    token_file and role.
    """

    files: FileSettings = FileSettings()

    secrets: dict[str, SecretSettings] = {}
    """Secrets by the name that resources use."""

    egress: tuple[str, ...] | None = None
    """Addresses that sources and sinks may call.

    Forms: HOST, HOST:PORT, *.DOMAIN, * (anywhere public), or a network such as 10.1.0.0/16. A
    private address needs its network, or its very host.
    """

    topics: TopicSettings = TopicSettings()

    clear_text: tuple[str, ...] = ()
    """Addresses to which passwords may travel unencrypted, as in `egress`; loopback is always
    one."""
