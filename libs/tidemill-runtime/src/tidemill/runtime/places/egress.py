"""Egress of sources and sinks: hosts by their names before, and addresses at connection."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any, TypeAlias

from tidemill.errors import UsageError

Address: TypeAlias = "IPv4Address | IPv6Address"

_METADATA = frozenset((ip_address("fd00:ec2::254"), ip_address("100.100.100.200")))
"""Addresses at which clouds hand out credentials of machines, beside 169.254.0.0/16."""


_TRANSLATED = tuple(map(ip_network, ("64:ff9b::/96", "64:ff9b:1::/48", "::ffff:0:0:0/96", "::/96")))
"""Addresses of IPv4 as IPv6: RFC 6052, RFC 8215, RFC 2765, RFC 4291."""

_HERE = tuple(map(ip_network, ("::/127", "fec0::/10", "5f00::/16", "3fff::/20")))
"""Addresses of IPv6 that are never public: unspecified, loopback, of a site (RFC 3879), of
segments (RFC 9602), of documents (RFC 9637).
"""


class EgressRefused(OSError):
    """A name led to an address to which nobody may connect, or not by that name."""

    def __init__(self, says: str) -> None:
        super().__init__(says)
        self.strerror = says


@dataclass(frozen=True, slots=True)
class HostRule:
    """One host, a domain, a network, or anything public; at one port, or at any.

    Plain data, for jobs.
    """

    host: str
    port: int | None
    network: str | None

    def names(self, host: str, port: int) -> bool:
        """Whether a name, or an address, is meant; of a network, any name may be."""
        if self.port not in (None, port):
            return False
        literal = _literal(host)
        if self.network is not None:
            return literal is None or literal in ip_network(self.network)
        if self.host == "*":
            return literal is None or _is_public(literal)
        if self.host.startswith("*."):
            return host.lower().endswith(self.host[1:])
        return host.lower() == self.host

    def reaches(self, host: str, port: int, address: Address) -> bool:
        """Whether a name may lead to `address`: a private one needs its network, or the very
        host.
        """
        if self.port not in (None, port):
            return False
        if self.network is not None:
            return address in ip_network(self.network)
        if not self.names(host, port):
            return False
        return _is_public(address) or not self.host.startswith("*")


def host_rule(text: str) -> HostRule:
    """The rule that a setting says. Raises: UsageError."""
    host, port = text, None
    if text.startswith("[") and "]" in text:
        host, _, rest = text[1:].partition("]")
        port = rest.removeprefix(":") or None
    elif text.count(":") == 1 and "/" not in text:
        host, _, port = text.partition(":")
    try:
        number = None if port is None else int(port)
        network = str(ip_network(host, strict=False)) if "/" in host or _literal(host) else None
    except ValueError as error:
        raise UsageError(
            f"{text} is no host, domain or network: {error}", reason="egress"
        ) from error
    if not host or ("*" in host and host != "*" and (host[:2] != "*." or "*" in host[1:])):
        raise UsageError(
            f"{text} is no host, domain or network: write HOST, HOST:PORT, *.DOMAIN or 10.0.0.0/8",
            reason="egress",
        )
    return HostRule(host.lower(), number, network)


@dataclass(frozen=True, slots=True)
class Egress:
    """Admissible destinations of connections.

    `rules` of None: anywhere but to services that hand out credentials of machines.

    `secrets` are, for each secret that travels over a connection, its admissible destinations.
    """

    rules: tuple[HostRule, ...] | None = None
    secrets: tuple[tuple[str, tuple[HostRule, ...]], ...] = ()

    def with_secret(self, name: str, rules: Sequence[HostRule]) -> Egress:
        """The same, for connections over which a secret travels."""
        return Egress(self.rules, (*self.secrets, (name, tuple(rules))))

    def check_name(self, host: str, port: int) -> None:
        """Raises: UsageError if nothing allows this host, whatever address it has."""
        literal = _literal(host)
        if literal is not None and (says := _never(literal)):
            raise UsageError(f"{host}:{port} is refused: {says}", reason="Egress")
        for rules, setting, what in self._limits():
            if not any(rule.names(host, port) for rule in rules):
                raise UsageError(
                    f"{host}:{port} is refused{what}: {setting} does not name it", reason="Egress"
                )

    def check_address(self, host: str, port: int, address: str) -> None:
        """Raises: EgressRefused if `host` may not be reached at `address`."""
        found = _within(ip_address(address.partition("%")[0]))
        says = _never(found)
        if not says:
            for rules, setting, what in self._limits():
                if not any(rule.reaches(host, port, found) for rule in rules):
                    says = f"{setting} does not name that address, nor this very host{what}"
        if says:
            raise EgressRefused(f"{host}:{port} at {found} is refused: {says}")

    async def connect_allowed(self, host: str, port: int) -> socket.socket:
        """A connected socket, to an address that was checked. Raises: EgressRefused, OSError."""
        self.check_name(host, port)
        loop = asyncio.get_running_loop()
        failed: OSError = OSError(f"{host} has no address")
        for family, kind, protocol, _, place in await loop.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        ):
            sock = None
            try:
                self.check_address(host, port, str(place[0]))
                sock = socket.socket(family, kind, protocol)
                sock.setblocking(False)
                await loop.sock_connect(sock, place)
                return sock
            except OSError as error:
                failed = error
                if sock is not None:
                    sock.close()
            except BaseException:
                if sock is not None:
                    sock.close()
                raise
        raise failed

    def socket_at(self, host: str, port: int, info: Any) -> socket.socket:
        """A socket for one address of a name, for aiohttp to connect. Raises: EgressRefused."""
        family, kind, protocol, _, place = info
        self.check_address(host, port, str(place[0]))
        return socket.socket(family, kind, protocol)

    def _limits(self) -> list[tuple[tuple[HostRule, ...], str, str]]:
        limits = [] if self.rules is None else [(self.rules, "places.egress", "")]
        for name, rules in self.secrets:
            setting = f"places.secrets.{name}.hosts"
            limits.append((rules, setting, f" for the secret {name}"))
        return limits


ANYWHERE = Egress()


def _within(address: Address) -> Address:
    """The address of IPv4 that a gateway would make of one of IPv6; else itself."""
    if isinstance(address, IPv4Address):
        return address
    for known in (address.ipv4_mapped, address.sixtofour, (address.teredo or (None, None))[1]):
        if known is not None:
            return known
    if any(address in network for network in _TRANSLATED) and address not in _HERE[0]:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address


def _is_public(address: Address) -> bool:
    return address.is_global and not any(address in network for network in _HERE)


def _never(address: Address) -> str:
    if address.is_link_local or address in _METADATA:
        return "machines find credentials there"
    if address.is_multicast or address.is_unspecified:
        return "it is no address of one machine"
    return ""


def _literal(host: str) -> Address | None:
    try:
        return _within(ip_address(host.strip("[]").partition("%")[0]))
    except ValueError:
        return None


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, by its name alone."""
    literal = _literal(host)
    return host.lower() == "localhost" if literal is None else literal.is_loopback
