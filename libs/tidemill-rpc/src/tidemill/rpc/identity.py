"""Authentication and authorization: users by a token, services by a certificate.

A token file states the grants of each token; it holds hashes, so that its readers cannot call:

    users:
    - name: alice
      sha256: 2bb80d53…            # of the token
      expires: 2027-01-31T00:00:00Z
      previous: {sha256: 9c1f…, expires: 2026-12-01T00:00:00Z}
      grants:
      - {role: reader, collections: ["*"]}
      - {role: admin, collections: ["ops-*", "flights"]}

A name of a collection is compared by its part before the first slash: the resource that makes it. A
pattern is a name, or a beginning of names with `*` behind it: a namespace.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from tidemill.errors import Denied, Unauthenticated, Unavailable, UsageError
from tidemill.time.instants import ms_since_epoch


class Role(IntEnum):
    """Rights of a user; each role has those of the roles before it."""

    reader = 1
    writer = 2
    admin = 3


@dataclass(frozen=True, slots=True)
class Grant:
    """A role over the collections that some pattern names."""

    role: Role
    collections: tuple[str, ...] = ("*",)

    def covers(self, role: Role, name: str) -> bool:
        """Whether it is enough for `role` over the collection `name`."""
        resource = name.partition("/")[0].partition("~")[0]
        return self.role >= role and any(_matches(each, resource) for each in self.collections)


@dataclass(frozen=True, slots=True)
class Principal:
    """A user or a service that has proved who it is."""

    name: str
    grants: tuple[Grant, ...]

    def has(self, role: Role, name: str | None = None) -> bool:
        """Whether it has the role over a collection; without a name, over any.

        Collections of the system itself are read by administrators, and written by nobody.
        """
        if name is None:
            return any(grant.role >= role for grant in self.grants)
        if name.partition("/")[0].partition("~")[0] == SYSTEM_RESOURCE:
            if role > Role.reader:
                return False
            role = Role.admin
        return any(grant.covers(role, name) for grant in self.grants)

    def demand(self, role: Role, *names: str, shown: str | None = None) -> None:
        """Raises: Denied if it lacks the role over one of the collections, which is then called
        `shown`.
        """
        for name in names:
            if not self.has(role, name):
                said = name if shown is None else shown
                raise Denied(
                    f"{self.name} is no {role.name} of {said}: ask an administrator for a grant "
                    "that covers it",
                    principal=self.name, role=role.name, collection=said,
                )  # fmt: skip


SYSTEM_RESOURCE = "tidemill"
"""First part of the names of collections about the system itself."""

EVERYBODY = Principal("anybody", (Grant(Role.admin),))
"""Principal of every call to a server without authentication."""

PROCESS = Principal("this process", (Grant(Role.admin),))
"""Principal of the process itself: resources of its own command line, and older ones."""

NOBODY = Principal("nobody", ())
"""Principal where nobody was asked: it has no right."""

caller: ContextVar[Principal] = ContextVar("caller", default=NOBODY)
"""Principal of the call that is being answered; NOBODY outside of a call."""


def listed(names: Iterable[str]) -> list[str]:
    """Of names that a message would tell, those that the caller may read; outside of a call all."""
    by = caller.get()
    return [name for name in names if by is NOBODY or by.has(Role.reader, name)]


class Authenticator(Protocol):
    """Finds out who calls."""

    def principal(
        self, metadata: Mapping[str, str], identities: Callable[[], Iterable[str]]
    ) -> Principal:
        """Sender of `metadata`, who has proved `identities`. Raises: Unauthenticated."""
        ...


class Open:
    """Everybody may do everything: a server in the clear on one machine."""

    def principal(
        self, metadata: Mapping[str, str], identities: Callable[[], Iterable[str]]
    ) -> Principal:
        """Anybody."""
        return EVERYBODY


@dataclass(frozen=True, slots=True)
class ServicesOnly:
    """Only who has a certificate of the services' authority, under one of `names` if there are
    any.
    """

    names: tuple[str, ...] = ()

    def principal(
        self, metadata: Mapping[str, str], identities: Callable[[], Iterable[str]]
    ) -> Principal:
        """The service. Raises: Unauthenticated."""
        proved = tuple(identities())
        for identity in proved:
            if not self.names or any(_matches(each, identity) for each in self.names):
                return Principal(f"service {identity}", (Grant(Role.admin),))
        raise Unauthenticated(
            f"this port is for services: a certificate for {', '.join(proved) or 'nobody'} is none of "
            f"{', '.join(self.names) or 'theirs'}"
        )


RUN_KEY = "tidemill-run"
"""The metadata that says for which run of a process a call is."""

ELSEWHERE = "elsewhere"
"""Reason of an Unavailable that another process would not be: the connection is as it should be."""


def address_of_run(place: str, run: str) -> str:
    """The address that a process advertises: host and port, and the run that answers there."""
    return f"{place}#{run}"


def place_and_run(address: str) -> tuple[str, str]:
    """Host and port of what a process advertises, and the run that answers there."""
    place, _, run = address.partition("#")
    return place, run


@dataclass(frozen=True, slots=True)
class OneRun:
    """Callers who call one run of a process, each let in by `callers`.

    Addresses are given out anew: who held one a moment ago may have been a process of another
    system, with sources of the same names.
    """

    run: str
    callers: Authenticator

    def principal(
        self, metadata: Mapping[str, str], identities: Callable[[], Iterable[str]]
    ) -> Principal:
        """The caller. Raises: Unauthenticated; Unavailable if the call is for another run."""
        found = self.callers.principal(metadata, identities)
        if metadata.get(RUN_KEY) != self.run:
            raise Unavailable(
                "the process that was called is gone: another one answers at its address",
                reason=ELSEWHERE,
            )
        return found


@dataclass(frozen=True, slots=True)
class User:
    """A user of a token file."""

    principal: Principal
    sha256: bytes
    expires_ms: int | None = None


GRACE_S = 300.0
"""Seconds for which the last readable token file stays in force."""

_WORDS = (
    "", "admin", "administrator", "changeme", "default", "guest", "operator", "pass", "passwd", "password",
    "reader", "root", "secret", "test", "tidemill", "token", "user", "writer", "123", "1234", "12345",
    "123456", "12345678", "123456789",
)  # fmt: skip
"""Weak tokens that people write into a token file.

Only these can be recognised by their hashes; a token should be random.
"""


class Tokens:
    """The users of a token file; a changed file counts from the next call on.

    While the file cannot be read, or has a mistake, the users of before count for `grace_s`, and
    `told` hears of it. Then nobody is let in, since a token may have been withdrawn meanwhile.
    """

    def __init__(
        self,
        file: Path,
        decode: Callable[[str], Mapping[str, object]],
        told: Callable[[str], None] = lambda says: None,
        now_ms: Callable[[], int] = lambda: 0,
        grace_s: float = GRACE_S,
    ) -> None:
        """Without `now_ms` nothing ends by itself.

        Raises: UsageError that names what is wrong in the file.
        """
        self._now_ms = now_ms
        self._grace_ms = int(grace_s * 1000)
        self._unread_since: int | None = None
        self._file = file
        self._decode = decode
        self._told = told
        self._stamp = self._look()
        self._users = self._read()

    def principal(
        self, metadata: Mapping[str, str], identities: Callable[[], Iterable[str]]
    ) -> Principal:
        """Whose token was sent. Raises: Unauthenticated, which repeats nothing of what was sent."""
        self._refresh()
        scheme, _, token = metadata.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise Unauthenticated(
                "this server asks for a token: give its file with --token-file or "
                "TIDEMILL_TOKEN_FILE"
            )
        digest = hashlib.sha256(token.strip().encode("utf-8", "surrogatepass")).digest()
        found: Principal | None = None
        for user in self._users:
            ended = user.expires_ms is not None and user.expires_ms <= self._now_ms()
            if hmac.compare_digest(user.sha256, digest) and not ended:
                found = user.principal
        if found is None:
            raise Unauthenticated(
                "this server does not know the token: it was withdrawn, has expired, or is another server's"
            )
        return found

    def _look(self) -> tuple[int, int]:
        try:
            status = self._file.stat()
        except OSError as error:
            raise UsageError(
                f"the token file {self._file} cannot be read: {error.strerror}", reason="tokens"
            ) from error
        return status.st_mtime_ns, status.st_ino

    def _refresh(self) -> None:
        try:
            stamp = self._look()
            if stamp != self._stamp or self._unread_since is not None:
                self._stamp = stamp
                self._users = self._read()
                self._unread_since = None
        except UsageError as error:
            self._told(str(error))
            if self._unread_since is None:
                self._unread_since = self._now_ms()
            if self._now_ms() - self._unread_since >= self._grace_ms:
                self._users = ()

    def _read(self) -> tuple[User, ...]:
        try:
            return users_of(self._decode(self._file.read_text()))
        except (OSError, UsageError, ValueError) as error:
            raise UsageError(f"the token file {self._file}: {error}", reason="tokens") from error


def users_of(document: Mapping[str, object]) -> tuple[User, ...]:
    """The users of a decoded token file. Raises: UsageError that names the user and the field."""
    _only(document, {"users"}, "the file")
    listed = document.get("users")
    if not isinstance(listed, list) or not listed:
        raise UsageError("it lists no users")
    found: dict[str, list[User]] = {}
    for number, entry in enumerate(listed, 1):
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise UsageError(f"user {number} has no name")
        name = entry["name"]
        _only(entry, {"name", "sha256", "grants", "expires", "previous"}, f"user {name}")
        if name in found:
            raise UsageError(f"user {name} is there twice")
        grants = entry.get("grants")
        if not isinstance(grants, list) or not grants:
            raise UsageError(f"user {name} has no grants")
        made = tuple(_grant(name, each) for each in grants)
        who = Principal(name, made)
        found[name] = [User(who, _digest(name, entry.get("sha256")), _expires(name, entry))]
        if "previous" in entry:
            found[name].append(_previous(who, entry["previous"]))
    users = tuple(user for each in found.values() for user in each)
    if len({user.sha256 for user in users}) != len(users):
        raise UsageError("two users have one token")
    return users


def _previous(who: Principal, entry: object) -> User:
    """The token that a user had before, which has to end by itself."""
    what = f"the previous token of {who.name}"
    if not isinstance(entry, dict) or "expires" not in entry:
        raise UsageError(f"{what} is no mapping of sha256 and expires")
    _only(entry, {"sha256", "expires"}, what)
    return User(who, _digest(who.name, entry.get("sha256")), _expires(who.name, entry))


def _expires(user: str, entry: Mapping[str, object]) -> int | None:
    """The first instant at which a token does not count any more."""
    told = entry.get("expires")
    if told is None:
        return None
    try:
        at = told if isinstance(told, datetime) else datetime.fromisoformat(str(told))
    except ValueError:
        at = datetime.min
    if at.tzinfo is None:
        raise UsageError(
            f"user {user}: expires is {told!r}: say an instant with its zone, such as 2027-01-31T00:00:00Z"
        )
    return ms_since_epoch(at)


def _grant(user: str, entry: object) -> Grant:
    if not isinstance(entry, dict):
        raise UsageError(f"a grant of {user} is no mapping of role and collections")
    _only(entry, {"role", "collections"}, f"a grant of {user}")
    if entry.get("role") not in Role.__members__:
        raise UsageError(
            f"a grant of {user} has no role: reader, writer or admin, not {entry.get('role')!r}"
        )
    patterns = entry.get("collections")
    if not isinstance(patterns, list) or not patterns:
        raise UsageError(f'a grant of {user} names no collections: list names, "ops-*" or "*"')
    for each in patterns:
        if not isinstance(each, str) or "*" in each[:-1] or "/" in each or not each:
            raise UsageError(
                f"a grant of {user}: {each!r} is no pattern: a name, or a beginning and * behind it"
            )
    return Grant(Role[entry["role"]], tuple(patterns))


def _digest(user: str, value: object) -> bytes:
    try:
        digest = bytes.fromhex(value) if isinstance(value, str) else b""
    except ValueError:
        digest = b""
    if len(digest) != hashlib.sha256().digest_size:
        raise UsageError(f"user {user} has no sha256 of 64 hexadecimal digits")
    for word in (*_WORDS, user, user.lower()):
        if digest in (_sha256(word), _sha256(f"{word}\n")):
            raise UsageError(
                f"user {user} has a token that anybody guesses: make one of 32 random bytes, "
                "head -c 32 /dev/urandom | base64"
            )
    return digest


def _sha256(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _only(entry: Mapping[str, object], known: set[str], what: str) -> None:
    unknown = sorted(set(entry) - known)
    if unknown:
        raise UsageError(f"{what} has unknown fields: {', '.join(map(str, unknown))}")


def _matches(pattern: str, name: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


NEEDS: Mapping[str, Role] = MappingProxyType(
    {
        f"/tidemill.{service}/{method}": role
        for service, methods in {
            "query.v1.QueryService": {
                Role.reader: "Snapshot Ask Subscribe Why WhyNot Explain Tables Collections "
                "ExplainTimestamp Translate",
            },
            "catalog.v1.CatalogService": {
                Role.reader: "Get Describe",
                Role.writer: "Insert Push",
                Role.admin: "Apply Delete Decide",
            },
            "storage.v1.StorageService": {
                # Of these, what hands out or presents the right to write needs a writer.
                Role.reader: "AcquireCapabilities CloneCapability TransferCapability Downgrade "
                "Drop Renew SubscribeAt HoldVersion LocateObjects",
                Role.writer: "Create UpdateAndDowngrade",
                Role.admin: "Expire",
            },
            "compute.v1.ComputeService": {Role.admin: "MaintainView DropView"},
            "ingest.v1.IngestService": {Role.admin: "Probe Deliver Commit"},
            "work.v1.WorkService": {Role.admin: "List"},
        }.items()
        for role, names in methods.items()
        for method in names.split()
    }
)
"""The role that each method needs, over the collections that it names."""
