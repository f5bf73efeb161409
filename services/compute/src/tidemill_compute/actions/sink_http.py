"""An HTTP endpoint as a sink. Its promise depends on the abilities of the endpoint."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum

import aiohttp

from tidemill.errors import Unavailable, UsageError
from tidemill.runtime.addresses import bare_url
from tidemill.runtime.clock import Clock
from tidemill.runtime.kafka_access import tls_context
from tidemill.runtime.places import ANYWHERE, Egress, Secret
from tidemill.runtime.places.http import gated_connector, said
from tidemill_compute.actions.lanes import fire_abreast, lane_by
from tidemill_compute.actions.messages import Compose, line, signed
from tidemill_compute.actions.outbox import Firing, Took, untold

_AGAIN = frozenset({408, 409, 425, 429})
"""Refusals that a retry may not meet: too slow, the same key in progress, too early, too many."""


ANSWER_BYTES_MAX = 64 << 10


class Delivery(Enum):
    """Number of times that an effect may happen, by the abilities of the endpoint."""

    KEYED = "keyed"
    """Once: the endpoint does nothing the second time it sees a key."""
    ASKABLE = "askable"
    """Once: the endpoint tells whether a key has been seen, and is asked whenever that is in doubt.
    """
    AT_LEAST_ONCE = "atLeastOnce"
    """Once or, after a failure, more often."""
    AT_MOST_ONCE = "atMostOnce"
    """Once or, after a failure, not at all."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """URL to send to, header of the key, and URL to ask for one (with `{key}` in it).

    `shown` stands for a URL that is a secret itself.
    """

    url: str
    delivery: Delivery = Delivery.KEYED
    key_header: str = "Idempotency-Key"
    ask: str = ""
    timeout_s: float = 10.0
    method: str = "POST"
    compose: Compose = line
    headers: tuple[tuple[str, str], ...] = ()
    signature: Secret | None = None
    """Signs each request, as Standard Webhooks says."""
    certificate: tuple[Secret, Secret] | None = None
    """With which this process shows who it is: certificate and key."""
    shown: str = ""
    secrets: tuple[tuple[str, Secret], ...] = ()
    """Headers whose values are secrets, read for each batch of requests."""
    egress: Egress = ANYWHERE
    again_s: tuple[float, ...] = (0.1, 0.2, 0.4, 0.8)
    """Pauses after answers that say to try again; after the last one the action begins again."""
    lanes_max: int = 1
    """Requests under way at a time, each of another lane."""
    lane_at: int = 0
    """Place of the argument that firings of one lane have in common."""


class HttpSink:
    """Sends each firing, its key in a header; 2xx means it happened.

    Those of one lane are sent one after the other, each once the one before it was answered.

    After an answer of 5xx, or of those above, the same key is tried again, a few times at once. No
    answer at all, or none that is better, is Unavailable: the action begins again. Any other
    refusal is for a person to look at: UsageError.
    """

    def __init__(self, endpoint: Endpoint, clock: Clock) -> None:
        self._endpoint = endpoint
        self._clock = clock
        self.at_most_once = endpoint.delivery is Delivery.AT_MOST_ONCE

    async def recover(self, doubtful: Sequence[Firing]) -> frozenset[str]:
        """Of what is in doubt, what the endpoint says has happened; nothing if it cannot be
        asked.
        """
        if self._endpoint.delivery is not Delivery.ASKABLE or not doubtful:
            return frozenset()
        known = set[str]()
        async with self._session(self._endpoint.ask) as session:

            async def ask(firing: Firing) -> None:
                if await self._ask(session, firing.key):
                    known.add(firing.key)

            await self._abreast(doubtful, ask)
        return frozenset(known)

    async def fire(self, firings: Sequence[Firing], took: Took = untold) -> None:
        """Post each firing, those of a lane in turn; `took` hears of each that the endpoint has
        accepted.
        """
        if not firings:
            return
        async with self._session(self._endpoint.url) as session:

            async def post(firing: Firing) -> None:
                await self._post(session, firing)
                took([firing])

            await self._abreast(firings, post)

    async def _abreast(
        self, firings: Sequence[Firing], work: Callable[[Firing], Awaitable[None]]
    ) -> None:
        endpoint = self._endpoint
        await fire_abreast(firings, lane_by(endpoint.lane_at), endpoint.lanes_max, work)

    async def close(self) -> None:
        """Nothing is held open between two calls."""

    def _session(self, url: str) -> aiohttp.ClientSession:
        """Raises: UsageError for a host or a secret that may not be had."""
        endpoint = self._endpoint
        headers = {**dict(endpoint.headers), **{n: each.text() for n, each in endpoint.secrets}}
        tls = None
        if endpoint.certificate is not None:
            certificate, key = endpoint.certificate
            what = f"the secrets {certificate.name} and {key.name}"
            tls = tls_context("", str(certificate.file), str(key.file), what)
        return aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=endpoint.timeout_s), raise_for_status=False,
            headers=headers, connector=gated_connector(url, endpoint.egress, tls),
            auto_decompress=False,
        )  # fmt: skip

    async def _post(self, session: aiohttp.ClientSession, firing: Firing) -> None:
        endpoint = self._endpoint
        message = endpoint.compose(firing)
        for pause_s in (*(() if self.at_most_once else endpoint.again_s), None):
            if endpoint.signature is not None:
                second, secret = self._clock.now_ms() // 1000, endpoint.signature.text()
                message = signed(message, firing.key, second, secret)
            headers = {**message.headers, endpoint.key_header: firing.key}
            status = await self._status(
                session, endpoint.method, endpoint.url, headers, message.body
            )
            if 200 <= status < 300:
                return
            refusal = self._refusal(endpoint.url, status)
            if pause_s is None or not isinstance(refusal, Unavailable):
                raise refusal
            await self._clock.sleep(pause_s)
            if await self.recover([firing]):
                return

    async def _ask(self, session: aiohttp.ClientSession, key: str) -> bool:
        url = self._endpoint.ask.replace("{key}", key)
        status = await self._status(session, "GET", url, {}, None)
        if status == 404:
            return False
        if not 200 <= status < 300:
            raise self._refusal(url, status)
        return True

    async def _status(
        self,
        session: aiohttp.ClientSession,
        method: str,
        url: str,
        headers: dict[str, str],
        body: bytes | None,
    ) -> int:
        try:
            async with session.request(
                method, url, headers=headers, data=body, allow_redirects=False
            ) as answer:
                # The body of the answer is not used; reading it to its end frees the connection.
                await answer.content.read(ANSWER_BYTES_MAX)
                return answer.status
        except (aiohttp.ClientError, TimeoutError) as error:
            shown = self._endpoint.shown or bare_url(url)
            raise Unavailable(f"sink {shown} did not answer: {said(error)}", url=shown) from error

    def _refusal(self, url: str, status: int) -> Exception:
        shown = self._endpoint.shown or bare_url(url)
        if status >= 500 or status in _AGAIN:
            return Unavailable(f"sink {shown} answered {status}", url=shown)
        if 300 <= status < 400:
            return UsageError(
                f"sink {shown} answered {status}: redirects are not followed; name the place itself",
                reason="SinkRefused",
            )
        return UsageError(f"sink {shown} answered {status}", reason="SinkRefused")
