"""Deliveries of webhooks: proved by their signature, and written once for each id."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Literal, Protocol

import msgspec

from tidemill.errors import Unavailable, UnknownCollection, UsageError
from tidemill.rpc.admission import throttle_rows_of_call
from tidemill.rpc.identity import Grant, Principal, Role, caller
from tidemill.rpc.messages import Pushed
from tidemill.rpc.turns import beside
from tidemill.runtime.http_guard import ROWS
from tidemill.runtime.http_messages import HttpReply, HttpRequest
from tidemill.runtime.places import Places
from tidemill.runtime.resources import HttpOrigin, SourceSpec
from tidemill_query.push_tokens import refuse_many_rows
from tidemill_query.pushing import rows_of
from tidemill_query.web.commands import SERVICE, Accepted, OfSource
from tidemill_query.web.door import Asked, Handlers, Operation, Proof
from tidemill_query.web.forms import JSON
from tidemill_query.web.reading import said
from tidemill_query.web.signatures import check_signature

ID_CHARS_MAX = 1_000
"""Characters of the id of a delivery."""

DELIVERY = "delivery of a webhook "
"""Beginning of the token that an id of a delivery becomes: no id is too short for one."""


class Receiving(Protocol):
    """Sources as deliveries see them."""

    def known_source(self, name: str) -> SourceSpec | None:
        """The source of that name as far as this process knows it."""
        ...

    async def source(self, name: str) -> SourceSpec:
        """The source of that name. Raises: UnknownCollection, Unavailable if it is broken."""
        ...

    async def receive(self, source: str, rows: Sequence[bytes], delivery: str | None) -> Pushed:
        """Write rows ahead as a push does; those of a known delivery are there already."""
        ...


class Webhooks:
    """Proves and writes the deliveries of a process."""

    def __init__(self, sources: Receiving, places: Places, now_ms: Callable[[], int]) -> None:
        self._sources = sources
        self._places = places
        self._now_ms = now_ms

    def expect(self, request: HttpRequest) -> None:
        """Raises: UnknownCollection unless the source takes signed deliveries: no other body is
        read.
        """
        name = request.parts["name"]
        spec = self._sources.known_source(name)
        if spec is None or spec.http is None or spec.http.verify is None:
            raise UnknownCollection(
                f"there is no Source {name} that takes signed deliveries: state http.verify, or push "
                "its rows",
                name=name,
            )

    async def sender(self, request: HttpRequest) -> Principal:
        """The sender of a delivery, a writer of its source alone.

        Raises: Unauthenticated for a wrong signature, Unavailable if the key cannot be read,
        UnknownCollection without a source that takes signed deliveries.
        """
        self.expect(request)
        name, now_ms = request.parts["name"], self._now_ms()
        verify = (await self._origin(name)).verify
        assert verify is not None
        try:
            secret = self._places.secret(verify.secret).text()
        except UsageError as error:  # the sender has done nothing wrong, and sends it again
            raise Unavailable(f"delivery not verified: {error}") from error

        def check() -> None:
            check_signature(verify, secret, request.sent, request.body, now_ms)

        await beside(len(request.body), check)
        return Principal(f"webhook {name}", (Grant(Role.writer, (name,)),))

    async def receive(self, request: HttpRequest, rows_max: int) -> Pushed | str:
        """Write the rows of a delivery of the caller.

        A text is the answer to Slack, which asks about an address before it uses one.
        """
        name = request.parts["name"]
        caller.get().demand(Role.writer, name)
        spec = await self._sources.source(name)
        origin = await self._origin(name)
        if origin.verify is not None and origin.verify.slack is not None:
            challenge = challenge_of(request.body)
            if challenge is not None:
                return challenge
        if spec.format.csv is not None or spec.format.text is not None:
            rows = await rows_of(request.body, rows_max)
        else:
            told = request.body, origin, request.sent
            rows = await beside(len(request.body), lambda: rows_of_json(*told, rows_max))
        await throttle_rows_of_call(len(rows))
        asked = origin, request.sent, request.body
        ident = await beside(len(request.body), lambda: delivery_id(*asked))
        token = None if ident is None else DELIVERY + ident
        return await self._sources.receive(name, rows, token)

    async def _origin(self, name: str) -> HttpOrigin:
        spec = await self._sources.source(name)
        if spec.http is None:
            raise UnknownCollection(f"Source/{name} takes no deliveries over HTTP", name=name)
        return spec.http


def rows_of_json(
    body: bytes, origin: HttpOrigin, sent: Mapping[str, str], rows_max: int
) -> list[bytes]:
    """The rows of a delivery, each on one line, with the columns that headers fill.

    Raises: UsageError for a body that is no JSON, and for one that is no array where it should be.
    """
    try:
        if origin.array:
            each = msgspec.json.decode(body, type=list[msgspec.Raw])
            refuse_many_rows(len(each), rows_max)
            rows = [bytes(one) for one in each]
        else:
            rows = [body]
        if not origin.headers:
            return [msgspec.json.format(row, indent=-1) for row in rows]
        named = {
            column: msgspec.Raw(msgspec.json.encode(sent.get(header.lower())))
            for column, header in origin.headers.items()
        }
        # NB: a header stands above a member of the body: a sender cannot name itself in the body.
        members = (msgspec.json.decode(row, type=dict[str, msgspec.Raw]) for row in rows)
        compact = (msgspec.json.encode({**found, **named}) for found in members)
        return [msgspec.json.format(row, indent=-1) for row in compact]
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        wanted = "a JSON array" if origin.array else "a JSON object" if origin.headers else "JSON"
        raise UsageError(f"delivery refused: it is not {wanted}: {error}", reason="json") from None


def delivery_id(origin: HttpOrigin, sent: Mapping[str, str], body: bytes) -> str | None:
    """The id of a delivery, the same if it is sent again; None if nothing states one.

    GitHub signs the body alone: who has recorded a delivery may send it under another id. So the
    body is the id, unless a header is named. Raises: UsageError for an id that is stated to be
    there and is not, or is too long.
    """
    verify, header = origin.verify, origin.dedupe
    if header is None and verify is not None:
        if verify.stripe is not None:
            return _id_of_event(body)
        if verify.github is not None:
            return blake2b(body, digest_size=16).hexdigest()
        header = "webhook-id" if verify.standard_webhooks is not None else None
    if header is None:
        return None
    found = sent.get(header.lower(), "")
    if not found or len(found) > ID_CHARS_MAX:
        says = "has no header" if not found else "has too long a header"
        raise UsageError(f"delivery refused: it {says} {header}, which is its id", reason="Header")
    return found


class _Event(msgspec.Struct):
    id: str


def _id_of_event(body: bytes) -> str:
    try:
        return msgspec.json.decode(body, type=_Event).id[:ID_CHARS_MAX]
    except (msgspec.DecodeError, UnicodeError) as error:
        raise UsageError(
            f"delivery refused: an event of stripe has an id: {error}", reason="json"
        ) from None


class _Challenge(msgspec.Struct):
    type: Literal["url_verification"]
    challenge: str


def challenge_of(body: bytes) -> str | None:
    """The text that Slack wants back before it uses an address; None for any other delivery."""
    try:
        return msgspec.json.decode(body, type=_Challenge).challenge
    except (msgspec.DecodeError, UnicodeError):
        return None


async def take_delivery(on: Handlers, asked: Asked) -> HttpReply:
    """Write the rows of a signed delivery to the log of the source `name`; it needs no token.

    The answer comes once they are in the log. A delivery whose id came before writes nothing new.
    """
    webhooks: Webhooks = on.webhooks
    pushed = await webhooks.receive(asked.request, on.push_rows)
    if isinstance(pushed, str):
        return HttpReply(200, pushed.encode(), "text/plain", {"Cache-Control": "no-store"})
    return said(Accepted(pushed.accepted))


def _expect(on: Handlers, request: HttpRequest) -> None:
    webhooks: Webhooks = on.webhooks
    webhooks.expect(request)


async def _sender(on: Handlers, request: HttpRequest) -> Principal:
    webhooks: Webhooks = on.webhooks
    return await webhooks.sender(request)


WEBHOOKS = (
    Operation("POST", "/v1/webhooks/{name}", SERVICE + "Push", OfSource, take_delivery,
              {JSON: Accepted}, dict.fromkeys(sorted(ROWS)), Proof(_expect, _sender),
              writes=True),
)  # fmt: skip
