"""Consensus in Redis, on one that has every acknowledged write on disk: many machines."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b, sha1
from itertools import pairwise
from typing import Any, TypeAlias, TypeVar, cast

from redis.asyncio import Redis, RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ConnectionError,  # noqa: A004  the name that redis-py gives it
    NoScriptError,
    RedisClusterException,
    RedisError,
    ResponseError,
    TimeoutError,  # noqa: A004  the name that redis-py gives it
)

from tidemill.errors import Indeterminate, TidemillError, Unavailable, UsageError
from tidemill.shard.offloading import all_of
from tidemill.shard.ports import PREFIX, TIMEOUT_S, Expected, Seen, Version

DURABLE: Mapping[str, str] = {
    "appendonly": "yes",
    "appendfsync": "always",
    "no-appendfsync-on-rewrite": "no",
}
"""Settings without which an acknowledged write may be lost."""

_REPEATED = re.compile(r"[`'\"]|, with args")

# A version is an entry of a stream, its number the first half of the entry's id. Streams refuse ids
# that do not grow, trim from the front, and remember their last id when they are cut. KEYS[1] is
# the stream. ARGV: the expected newest number or "" for none, the id of the new entry, its bytes.
# The last one is the digest of the expected bytes, or * for any.
_COMPARE_AND_SET = """
local newest = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)
local number = ''
if #newest > 0 then
  number = string.match(newest[1][1], '^%d+')
end
if number ~= ARGV[1] then
  return 0
end
if ARGV[4] ~= '*' and redis.sha1hex(newest[1][2][2]) ~= ARGV[4] then
  return 0
end
redis.call('XADD', KEYS[1], ARGV[2], 'd', ARGV[3])
return 1
"""

# The newest entry stays, whatever is asked. ARGV: the least number to keep.
_TRUNCATE = """
local newest = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)
if #newest == 0 then
  return 0
end
local number = tonumber(string.match(newest[1][1], '^%d+'))
local keep = math.min(tonumber(ARGV[1]), number)
return redis.call('XTRIM', KEYS[1], 'MINID', '=', string.format('%d', keep))
"""


@dataclass(frozen=True, slots=True)
class _Script:
    """A script as a server knows it, and its text for one that does not."""

    text: str
    digest: str

    @classmethod
    def of(cls, text: str) -> _Script:
        return cls(text, sha1(text.encode(), usedforsecurity=False).hexdigest())


_APPEND, _TRIM = _Script.of(_COMPARE_AND_SET), _Script.of(_TRUNCATE)
T = TypeVar("T")
Client: TypeAlias = "Redis | RedisCluster"


class RedisConsensus:
    """Guarantees of Consensus, each compare-and-set by one script on the keys of one hash slot.

    The first call reads the settings of the server, or of every primary of a cluster. Raises:
    UsageError naming the setting if one may lose what it has acknowledged, unless
    `allow_non_durable`; then `risks` says what may be lost.
    """

    def __init__(
        self,
        url: str,
        *,
        allow_non_durable: bool = False,
        timeout_s: float = TIMEOUT_S,
        prefix: str = PREFIX,
    ) -> None:
        self._url = url
        self._prefix = prefix
        self._allow_non_durable = allow_non_durable
        # IMPORTANT: no retries below us: a compare-and-set that is repeated there would find its
        # own version and say that another had won.
        self._options: Mapping[str, Any] = {
            "socket_timeout": timeout_s,
            "socket_connect_timeout": timeout_s,
            "retry": Retry(NoBackoff(), 0),
            # IMPORTANT: with the later protocol the client takes up a connection on which an answer
            # is left, and gives it to the next question.
            "protocol": 2,
        }
        self._client: Client = _reading(Redis.from_url(url, **self._options))
        self._checking = asyncio.Lock()
        self._checked = False
        self.risks: tuple[str, ...] = ()

    async def head(self, key: str) -> Version | None:
        """The newest version, None if there is none. Raises: Unavailable."""
        found = await self._ask(lambda: self._client.xrevrange(self._stream(key), count=1))
        return found[0] if found else None

    async def heads(self, keys: Sequence[str]) -> Sequence[Version | None]:
        """The newest version of each key; None too for one whose answer is none.

        Raises: Unavailable.
        """
        found: list[list[Version]] = await self._each(
            keys, lambda client, stream: client.xrevrange(stream, count=1), _versions_if_any
        )
        return [versions[0] if versions else None for versions in found]

    async def scan(self, key: str, start: int) -> Sequence[Version]:
        """The versions from number `start` on, in order. Raises: Unavailable."""
        stream = self._stream(key)
        found: list[Version] = await self._ask(lambda: self._client.xrange(stream, min=str(start)))
        return found

    async def compare_and_set(self, key: str, expected: Expected, version: Version) -> bool:
        """Append `version` iff the newest one is `expected`; on disk when True.

        Raises: Indeterminate.
        """
        if expected is None:
            # The names are in a slot of their own; one that is there without versions is not
            # listed.
            await self._ask(lambda: self._set_add(key), changes=True)
        newest, digest = expected if isinstance(expected, Seen) else (expected, "*")
        before = b"" if newest is None else str(newest).encode()
        number = f"{version.number}-1".encode()
        arguments = (before, number, version.data, digest.encode())
        done = await self._ask(lambda: self._ran(_APPEND, key, *arguments), changes=True)
        if done not in (0, 1):
            raise Indeterminate(f"the Redis at {_shown(self._url)}: {done} is no answer to a write")
        return bool(done)

    async def truncate(self, key: str, before: int) -> None:
        """Delete the versions before number `before`; the newest one stays."""
        await self._ask(lambda: self._ran(_TRIM, key, str(before).encode()), changes=True)

    async def keys(self) -> Sequence[str]:
        """The keys that have a version, in order."""
        ids = await self._ask(
            lambda: cast(Awaitable[Any], self._client.smembers(f"{self._prefix}:names"))
        )
        present = await self._each(ids, lambda client, stream: client.exists(stream), _whole_number)
        return [name for name, there in zip(ids, present, strict=True) if there]

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def _each(
        self, keys: Sequence[str], ask: Callable[[Any, str], Any], read: Callable[[Any], Any]
    ) -> list[Any]:
        """The answers of a server to one question about each key, in one exchange.

        The keys of a cluster are of many servers: each question goes to its own.
        """

        async def ask_each() -> list[Any]:
            if isinstance(self._client, RedisCluster):
                client = self._client
                return await all_of(ask(client, self._stream(key)) for key in keys)
            async with self._client.pipeline(transaction=False) as questions:
                # IMPORTANT: no answer is looked at before all are read. An error in their midst
                # would leave the others to the next question on the connection.
                questions.response_callbacks = {}
                for key in keys:
                    ask(questions, self._stream(key))
                return [read(each) for each in await questions.execute(raise_on_error=False)]

        return cast(list[Any], await self._ask(ask_each)) if keys else []

    async def _ran(self, script: _Script, key: str, *arguments: bytes) -> Any:
        """The answer of a script for a collection; its text is sent to a server that lacks it."""
        stream, client = self._stream(key), cast(Any, self._client)
        try:
            return await client.evalsha(script.digest, 1, stream, *arguments)
        except NoScriptError:
            return await client.eval(script.text, 1, stream, *arguments)

    def _stream(self, key: str) -> str:
        """The stream of a key, in the hash slot of that key alone."""
        digest = blake2b(key.encode(), digest_size=16).hexdigest()
        return f"{self._prefix}:{{{digest}}}:log"

    def _set_add(self, key: str) -> Awaitable[Any]:
        return cast(Awaitable[Any], self._client.sadd(f"{self._prefix}:names", key.encode()))

    async def _ask(self, ask: Callable[[], Awaitable[Any]], *, changes: bool = False) -> Any:
        """The server's answer, its errors translated.

        `changes`: a lost answer leaves the outcome open.
        """
        if not self._checked:
            await self._check()
        try:
            return await await_uncancelled(ask)
        except RedisClusterException as error:
            # The cluster has nobody for the slot now: nothing was sent.
            raise Unavailable(f"the Redis at {_shown(self._url)}: {error}") from error
        except RedisError as error:
            raise self._translated(error, changes=changes) from error
        except TidemillError:
            raise
        except Exception as error:  # the client raises what it meets in an answer that is none
            message = f"the Redis at {_shown(self._url)} gave no answer: {type(error).__name__}"
            raise (Indeterminate if changes else Unavailable)(message) from error

    async def _check(self) -> None:
        async with self._checking:
            if self._checked:
                return
            try:
                self.risks = tuple(await self._find_risks())
            except RedisClusterException as error:
                raise Unavailable(f"the Redis at {_shown(self._url)}: {error}") from error
            except RedisError as error:
                raise self._translated(error, changes=False) from error
            except Exception as error:  # as of every answer
                raise Unavailable(
                    f"the Redis at {_shown(self._url)} does not say its settings:"
                    f" {type(error).__name__}"
                ) from error
            if self.risks and not self._allow_non_durable:
                raise UsageError(
                    f"the Redis at {_shown(self._url)} may lose what it acknowledges: "
                    + "; ".join(self.risks)
                    + " (allowNonDurable accepts the risk)",
                    reason="NotDurable",
                    risks=self.risks,
                )
            self._checked = True

    async def _find_risks(self) -> list[str]:
        """Why an acknowledged version might be lost, each with the setting to change."""
        if not isinstance(self._client, RedisCluster):
            cluster = await self._client.info("cluster")
            if not cluster.get("cluster_enabled"):
                return await durability_risks(self._client)
            await self._client.aclose()
            self._client = _reading(RedisCluster.from_url(self._url, **self._options))
        nodes = cast(RedisCluster, self._client)
        await nodes.initialize()
        risks = []
        for node in nodes.get_primaries():
            found = await durability_risks(nodes, target_nodes=node)
            risks += [f"{node.name}: {risk}" for risk in found]
        return risks

    def _translated(self, error: RedisError, *, changes: bool) -> TidemillError:
        message = f"the Redis at {_shown(self._url)}: {answered(error)}"
        refused = isinstance(error.__context__, ConnectionRefusedError)
        lost = isinstance(error, ConnectionError | TimeoutError) and not refused
        if changes and lost and not isinstance(error, BusyLoadingError):
            return Indeterminate(message)
        return Unavailable(message)


async def await_uncancelled(ask: Callable[[], Awaitable[T]]) -> T:
    """The client's answer, or its error, unless the caller was cancelled meanwhile.

    The client sends by `asyncio.wait_for`, which before Python 3.12 forgets a cancellation at the
    moment of its own end. After a pause of the process that happens every time. An error that hides
    the cancellation would be taken for a reason to try again.
    """
    task = asyncio.current_task()
    before = 0 if task is None else task.cancelling()
    try:
        return await ask()
    finally:
        if task is not None and task.cancelling() > before:
            raise asyncio.CancelledError


def _reading(client: Client) -> Client:
    """The client, which takes no answer of another shape for one."""
    of_commands = cast(Any, client)  # redis-py types its callbacks for clients of both kinds
    for command in ("XRANGE", "XREVRANGE"):
        of_commands.set_response_callback(command, _versions)
    for command in ("EVALSHA", "EVAL", "EXISTS", "SADD"):
        of_commands.set_response_callback(command, _whole_number)
    of_commands.set_response_callback("SMEMBERS", _names)
    return client


def _versions(entries: object, **_: object) -> list[Version]:
    """The versions of a stream, ascending. Raises: ValueError for any other answer."""
    if not isinstance(entries, list):
        raise ValueError("an answer without entries")
    found = []
    for name, (field, data) in entries:
        if field != b"d" or not isinstance(data, bytes):
            raise ValueError("an entry that is no version")
        found.append(Version(int(name.partition(b"-")[0]), data))
    if any(later.number <= before.number for before, later in pairwise(found)):
        raise ValueError("versions out of order")
    return found


def _versions_if_any(answer: object) -> list[Version]:
    """The versions that an answer has; none if it is an error, or anything else."""
    with suppress(ValueError, TypeError, AttributeError):
        return _versions(answer)
    return []


def _names(answer: object, **_: object) -> list[str]:
    if not isinstance(answer, list):
        raise ValueError("an answer without names")
    return sorted(name.decode() for name in answer)


def _whole_number(answer: object, **_: object) -> int:
    if isinstance(answer, RedisError):
        raise answer
    if not isinstance(answer, int):
        raise ValueError("an answer that is no number")
    return answer


def _shown(url: str) -> str:
    """An address without what may be a password."""
    bare = url.rsplit("@", 1)[-1].partition("?")[0]
    return bare.removeprefix("redis://").removeprefix("rediss://")


def answered(error: RedisError) -> str:
    """The server's message, cut before a text that may repeat the request.

    Without a message, the fate of the connection.
    """
    if not isinstance(error, ResponseError | AuthenticationError):
        return str(error)
    return _REPEATED.split(str(error), maxsplit=1)[0].strip()


async def durability_risks(client: Client, **node: Any) -> list[str]:
    """Why one server might lose what it acknowledged."""
    try:
        settings = await client.config_get(**node)
    except ResponseError as error:
        return [f"its settings cannot be read ({answered(error)})"]
    risks = [
        f"{name} is {settings.get(name, 'unknown')}, not {wanted}"
        for name, wanted in DURABLE.items()
        if settings.get(name) != wanted
    ]
    bounded = settings.get("maxmemory", "0") != "0"
    if bounded and settings.get("maxmemory-policy") != "noeviction":
        risks.append(f"maxmemory-policy is {settings.get('maxmemory-policy')}, not noeviction")
    replication = await client.info("replication", **node)
    if replication.get("role") != "master":
        risks.append("it is a replica")
    if int(replication.get("connected_slaves", 0)):
        risks.append("a replica may be promoted before it has every acknowledged write")
    return risks
