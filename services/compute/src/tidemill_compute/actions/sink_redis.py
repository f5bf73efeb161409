"""A stream of a Redis server as a sink: effect, key and fence in one script."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, cast

from redis._parsers.resp2 import _AsyncRESP2Parser
from redis.asyncio import Connection, ConnectionPool, Redis, SSLConnection
from redis.exceptions import AuthenticationError, InvalidResponse, RedisError, ResponseError

from tidemill.errors import Fenced, TidemillError, Unavailable, UsageError
from tidemill.runtime.addresses import bare_url, host_and_port
from tidemill.runtime.places import ANYWHERE, Egress, Secret
from tidemill.shard.consensus_redis import await_uncancelled, durability_risks
from tidemill_compute.actions.outbox import Firing, Took, untold

TIMEOUT_S = 10.0
FIRINGS_PER_SCRIPT = 200
ANSWER_BYTES_MAX = 1 << 20
"""Much more than any answer that a sink asks for."""

# KEYS: the stream, the hash of keys, the hash of fences. ARGV: the action, its fence, then key and
# line of each firing. Answers the newest fence if that is another one, else 0.
_FIRE = """
local newest = tonumber(redis.call('HGET', KEYS[3], ARGV[1]) or '0')
if newest ~= tonumber(ARGV[2]) then
  return newest
end
for i = 3, #ARGV, 2 do
  if redis.call('HSETNX', KEYS[2], ARGV[i], ARGV[2]) == 1 then
    redis.call('XADD', KEYS[1], '*', 'key', ARGV[i], 'action', ARGV[1], 'fence', ARGV[2], 'body', ARGV[i + 1])
  end
end
return 0
"""


class RedisSink:
    """One entry for each key; acknowledged when `fire` returns. Delivery: transactional.

    Each start takes a higher fence, kept beside the stream: a process that was paused and replaced
    is refused, whatever it believes of itself. A key that is marked has its entry, whatever is
    trimmed from the stream. The server has to have every acknowledged write on disk, unless
    `allow_non_durable`.
    """

    at_most_once = False

    def __init__(
        self, url: str, stream: str, action: str, *, allow_non_durable: bool = False,
        username: str | None = None, secret: Secret | None = None, egress: Egress = ANYWHERE,
    ) -> None:  # fmt: skip
        self._url = url
        self._username = username
        self._secret = secret
        self._egress = egress
        self._keys = [stream, f"{{{stream}}}:keys", f"{{{stream}}}:fences"]
        self._action = action
        self._allow_non_durable = allow_non_durable
        self._epoch = 0

    async def recover(self, doubtful: Sequence[Firing]) -> frozenset[str]:
        """Take the next fence; of what is in doubt, what is marked.

        Raises: UsageError, Unavailable.
        """
        return await await_uncancelled(lambda: self._recover(doubtful))

    async def _recover(self, doubtful: Sequence[Firing]) -> frozenset[str]:
        _, marks, fences = self._keys
        client = self._client()
        try:
            if not self._allow_non_durable:
                await self._check(client)
            taken = await cast("Awaitable[Any]", client.hincrby(fences, self._action, 1))
            self._epoch = _whole_number(taken)
            if not doubtful:
                return frozenset()
            keys = [firing.key for firing in doubtful]
            found = await cast("Awaitable[Any]", client.hmget(marks, keys))
            return frozenset(key for key, mark in zip(keys, found, strict=True) if mark is not None)
        except TidemillError:
            raise
        except Exception as error:  # the client raises what it meets in an answer that is none
            raise self._unavailable(error) from error
        finally:
            await client.aclose()

    async def fire(self, firings: Sequence[Firing], took: Took = untold) -> None:
        """Raises: Fenced if another process has started since; Unavailable."""
        if firings:
            await await_uncancelled(lambda: self._fire(firings))
            took(firings)

    async def _fire(self, firings: Sequence[Firing]) -> None:
        client = self._client()
        try:
            script = client.register_script(_FIRE)
            for start in range(0, len(firings), FIRINGS_PER_SCRIPT):
                told: list[Any] = [self._action, self._epoch]
                for firing in firings[start : start + FIRINGS_PER_SCRIPT]:
                    told += [firing.key, firing.line]
                newest = _whole_number(await script(keys=self._keys, args=told))
                if newest:
                    raise Fenced(
                        f"sink {_shown(self._url)} refused: fence {self._epoch} is not the newest, "
                        f"{newest}"
                    )
        except TidemillError:
            raise
        except Exception as error:  # the client raises what it meets in an answer that is none
            raise self._unavailable(error) from error
        finally:
            await client.aclose()

    async def close(self) -> None:
        """Nothing is held open between two calls."""

    def _client(self) -> Redis:
        host, port = host_and_port(self._url, 6379)
        self._egress.check_name(host, port)
        password = None if self._secret is None else self._secret.text()
        secured = self._url.startswith("rediss://")
        pool = ConnectionPool.from_url(
            self._url, connection_class=GatedTls if secured else Gated, egress=self._egress,
            username=self._username, password=password,
            socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S,
            protocol=2, parser_class=BoundedParser,
        )  # fmt: skip
        return Redis.from_pool(pool)

    async def _check(self, client: Redis) -> None:
        risks = await durability_risks(client)
        if risks:
            raise UsageError(
                f"the Redis at {_shown(self._url)} may lose effects that it acknowledges: "
                f"{'; '.join(risks)} (allowNonDurable accepts the risk)",
                reason="NotDurable",
            )

    def _unavailable(self, error: Exception) -> Unavailable:
        # The client has a class for each code; the words behind one may repeat what was sent.
        refused = isinstance(error, ResponseError | AuthenticationError)
        says = str(error) if isinstance(error, RedisError) and not refused else type(error).__name__
        return Unavailable(f"sink {_shown(self._url)} refused: {says}")


def _whole_number(answer: object) -> int:
    if not isinstance(answer, int):
        raise ValueError("an answer that is no number")
    return answer


def _shown(url: str) -> str:
    """An address without what may be a password."""
    return bare_url(url).partition("://")[2]


class BoundedParser(_AsyncRESP2Parser):
    """Reads no answer of more than `ANSWER_BYTES_MAX`: whoever declares a sink names its server."""

    _left = 0

    async def read_response(self, *told: Any, **named: Any) -> Any:  # whatever redis-py says
        self._left = ANSWER_BYTES_MAX
        return await super().read_response(*told, **named)

    async def _read(self, length: int) -> bytes:
        self._spend(length)
        return await super()._read(length)

    async def _readline(self) -> bytes:
        line = await super()._readline()
        self._spend(len(line) + 2)
        return line

    def _spend(self, size: int) -> None:
        self._left -= size
        if self._left < 0 or size < 0:
            raise InvalidResponse("an answer longer than a sink reads")


class Gated(Connection):
    """A connection to an address that was checked when its name was known."""

    def __init__(self, *, egress: Egress, **told: Any) -> None:  # whatever redis-py says
        super().__init__(**told)
        self._egress = egress
        self._made: socket.socket | None = None

    async def _connect(self) -> None:
        self._made = await self._egress.connect_allowed(self.host, int(self.port))
        await super()._connect()  # type: ignore[no-untyped-call]

    def _connection_arguments(self) -> Mapping[str, Any]:
        """As of redis-py, with the socket in place of the host, which TLS is told of."""
        told = dict(super()._connection_arguments())
        host = told.pop("host")
        told.pop("port")
        named = {"server_hostname": host} if told.get("ssl") else {}
        return {**told, **named, "sock": self._made}


class GatedTls(Gated, SSLConnection):
    """The same, over TLS."""
