"""Schemas by their numbers: the port to a schema registry, and the client of its HTTP interface."""

from __future__ import annotations

import base64
import ssl
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import quote

import aiohttp
import msgspec

from tidemill.errors import Unavailable, UsageError
from tidemill.runtime.addresses import bare_url
from tidemill.runtime.places import ANYWHERE, Egress
from tidemill.runtime.places.http import gated_connector, said

TIMEOUT_S = 10.0
REFERENCES_MAX = 100
ANSWER_BYTES_MAX = 4 * 1024 * 1024
_ACCEPT = {
    "Accept": "application/vnd.schemaregistry.v1+json, application/json",
    "Accept-Encoding": "identity",
}


class RegisteredSchema(msgspec.Struct, frozen=True):
    """A schema, and what it refers to: each text after those that it needs. Never changes."""

    text: str
    references: tuple[str, ...] = ()
    kind: str = "AVRO"


class _Reference(msgspec.Struct, frozen=True):
    subject: str
    version: int


class _Registered(msgspec.Struct, frozen=True, rename="camel"):
    """The fields that are read of an answer of the registry."""

    schema: str = ""
    references: tuple[_Reference, ...] | None = None
    schema_type: str | None = None


_REGISTERED = msgspec.json.Decoder(_Registered)


class SchemaRegistry(Protocol):
    """Numbered schemas; a number once given always means the same schema."""

    async def schema(self, number: int) -> RegisteredSchema | None:
        """The schema of a number, None if the registry knows none.

        Raises: Unavailable if the registry cannot be asked now; UsageError if it refuses to answer.
        """
        ...

    async def close(self) -> None:
        """Release what the client holds."""
        ...


@dataclass(frozen=True, slots=True)
class RegistryAccess:
    """Login at a registry, and the kind of connection; representations leave `password` out."""

    url: str
    username: str | None = None
    password: str | None = None
    tls: ssl.SSLContext | None = None
    egress: Egress = ANYWHERE

    def __repr__(self) -> str:
        return f"RegistryAccess({self.shown!r})"

    @property
    def shown(self) -> str:
        """The address as people may see it."""
        return bare_url(self.url)


class HttpRegistry:
    """Guarantees of SchemaRegistry, over the HTTP interface of Confluent's; one event loop's."""

    def __init__(self, access: RegistryAccess, timeout_s: float = TIMEOUT_S) -> None:
        self._access = access
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession | None = None

    async def schema(self, number: int) -> RegisteredSchema | None:
        """The schema of a number with those it refers to; None if the registry has none."""
        found = await self._get(f"/schemas/ids/{number}")
        if found is None:
            return None
        texts: dict[tuple[str, int], str] = {}
        await self._refer(found, texts, 0)
        kind = found.schema_type or "AVRO"
        return RegisteredSchema(found.schema, tuple(texts.values()), kind)

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _refer(
        self, found: _Registered, texts: dict[tuple[str, int], str], depth: int
    ) -> None:
        """Collect what a schema refers to, what is referred to first."""
        for reference in found.references or ():
            place = reference.subject, reference.version
            if place in texts:
                continue
            if max(len(texts), depth) >= REFERENCES_MAX:
                raise UsageError(
                    f"a schema refers to more than {REFERENCES_MAX} others", reason="Registry"
                )
            inner = await self._get(f"/subjects/{quote(place[0], safe='')}/versions/{place[1]}")
            if inner is None:
                # The registry promises that what is referred to stays.
                raise Unavailable(f"{self._access.shown} does not have {place[0]} {place[1]} now")
            await self._refer(inner, texts, depth + 1)
            texts[place] = inner.schema

    async def _get(self, path: str) -> _Registered | None:
        """The schema at a path; None if there is none."""
        body = await self._fetch(path)
        if body is None:
            return None
        try:
            return _REGISTERED.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise Unavailable(
                f"the schema registry {self._access.shown} answers what is no schema: {error}"
            ) from error

    async def _fetch(self, path: str) -> bytes | None:
        """The document at a path; None if there is none."""
        url = self._access.url.rstrip("/") + path
        try:
            async with self._opened().get(url, allow_redirects=False) as reply:
                if reply.status == 404:
                    return None
                if reply.status in (401, 403):
                    raise UsageError(
                        f"the schema registry {self._access.shown} refuses to answer: {reply.status}",
                        reason="Registry",
                    )
                if reply.status != 200:
                    raise Unavailable(
                        f"the schema registry {self._access.shown} answered {reply.status}"
                    )
                body = bytearray()
                async for piece in reply.content.iter_chunked(1 << 16):
                    body += piece
                    if len(body) > ANSWER_BYTES_MAX:
                        raise Unavailable(
                            f"the schema registry {self._access.shown} answered more than "
                            f"{ANSWER_BYTES_MAX} bytes"
                        )
                return bytes(body)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unavailable(
                f"the schema registry {self._access.shown} does not answer: {said(error)}"
            ) from error

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            access = self._access
            headers = dict(_ACCEPT)
            if access.username is not None:
                login = f"{access.username}:{access.password or ''}".encode()
                headers["Authorization"] = f"Basic {base64.b64encode(login).decode()}"
            self._session = aiohttp.ClientSession(
                headers=headers,
                auto_decompress=False,  # nothing that came small becomes large
                timeout=aiohttp.ClientTimeout(total=self._timeout_s),
                connector=gated_connector(access.url, access.egress, access.tls),
            )
        return self._session
