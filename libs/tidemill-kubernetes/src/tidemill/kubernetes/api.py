"""Calls of an API server, and watches; errors are ours."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlencode

from aiohttp import ClientError, ClientTimeout

from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.client.exceptions import ApiException
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config
from tidemill.errors import (
    AlreadyUsed,
    Fenced,
    TidemillError,
    Unavailable,
    UnknownCollection,
    UsageError,
)

NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
CALL_S = 30.0
CONNECT_S = 10.0
LINE_BYTES_MAX = 8 << 20
"""Larger than any object that etcd takes."""

Json: TypeAlias = dict[str, Any]
"""A document of the API."""


class Expired(TidemillError):
    """The server no longer has the changes since a version: list again."""


async def in_this_place() -> Configuration:
    """Address and credentials of the API server: those of a pod, else those of kubectl.

    Raises: UsageError.
    """
    configuration = Configuration()
    try:
        if in_cluster():
            load_incluster_config(client_configuration=configuration)
        else:
            await load_kube_config(client_configuration=configuration)
    except ConfigException as error:
        raise UsageError(f"no API server is known here: {error}", reason="cluster") from error
    return configuration


def own_namespace() -> str:
    """The namespace of this pod, or `default` outside a cluster."""
    return NAMESPACE_FILE.read_text().strip() if in_cluster() else "default"


def in_cluster() -> bool:
    """Whether this process is a pod with a service account."""
    return NAMESPACE_FILE.exists()


class KubernetesApi:
    """Calls of one API server; `manager` is whose fields those of an apply are."""

    def __init__(self, configuration: Configuration, manager: str) -> None:
        self._client: Any = ApiClient(configuration)
        self._manager = manager

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def call(
        self, method: str, path: str, body: Json | None = None,
        query: Mapping[str, str] | None = None, content_type: str = "application/json",
    ) -> Json:  # fmt: skip
        """One call, and its answer.

        Raises: UnknownCollection, AlreadyUsed, Fenced, UsageError, Unavailable.
        """
        timeout = ClientTimeout(total=CALL_S, sock_connect=CONNECT_S)
        reply = await self._send(method, path, body, query, content_type, timeout)
        try:
            text = await reply.read()
        except (ClientError, TimeoutError) as error:
            raise Unavailable(f"{method} {path}: {error}") from error
        return _object(text, f"{method} {path}")

    async def list(
        self, path: str, only: Mapping[str, str] | None = None
    ) -> tuple[list[Json], str]:
        """All objects, or those that the selectors in `only` name; the version from which to
        watch.
        """
        found = await self.call("GET", path, query=only)
        try:
            return found["items"], found["metadata"]["resourceVersion"]
        except (KeyError, TypeError) as error:
            raise Unavailable(f"GET {path}: the answer is no list of objects") from error

    async def watch(
        self, path: str, version: str, seconds: int, only: Mapping[str, str] | None = None
    ) -> AsyncIterator[tuple[str, Json]]:
        """Changes since a version, until the server ends it; `only` are selectors.

        Raises: Expired, and as `call`.
        """
        query = {"watch": "true", "resourceVersion": version, "timeoutSeconds": str(seconds)}
        query |= only or {}
        # The server ends the watch by itself; a connection that is dead without a word does not.
        timeout = ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=seconds + CALL_S)
        reply = await self._send("GET", path, None, query, "application/json", timeout)
        content = reply.response.content
        try:
            async for line in _lines(content):
                event = _object(line, f"watch {path}")
                if event["type"] == "ERROR":
                    raise _refusal(
                        event["object"].get("code", 500), event["object"].get("message", "")
                    )
                yield event["type"], event["object"]
        except (ClientError, TimeoutError) as error:
            raise Unavailable(f"watch {path}: {error}") from error
        except (KeyError, TypeError, AttributeError) as error:
            raise Unavailable(f"watch {path}: the answer is no event: {error}") from error
        finally:
            reply.response.close()

    async def apply(self, path: str, body: Json, part: str = "") -> Json:
        """Server-side apply as our manager; what others set at the same place becomes ours."""
        query = {"fieldManager": self._manager, "force": "true"}
        target = f"{path}/{part}" if part else path
        return await self.call("PATCH", target, body, query, "application/apply-patch+yaml")

    async def _send(
        self, method: str, path: str, body: Json | None, query: Mapping[str, str] | None,
        content_type: str, timeout: ClientTimeout,
    ) -> Any:  # fmt: skip
        headers = {"Accept": "application/json", "Content-Type": content_type}
        await self._client.update_params_for_auth(
            headers, None, ["BearerToken"], path, method, body
        )
        url = self._client.configuration.host + path + (f"?{urlencode(query)}" if query else "")
        try:
            reply = await self._client.call_api(
                method, url, headers, body=body, _request_timeout=timeout
            )
            if reply.status >= 400:
                text = (await reply.read()).decode(errors="replace")
                raise _refusal(reply.status, f"{method} {path}: {_message(text)}")
        except ApiException as error:
            raise _refusal(error.status, f"{method} {path}: {error.reason}") from error
        except (ClientError, TimeoutError, OSError) as error:
            raise Unavailable(f"{method} {path}: {error or type(error).__name__}") from error
        return reply


async def _lines(content: Any) -> AsyncIterator[bytes]:  # aiohttp's stream
    """Lines of any length: readline of the stream refuses long ones."""
    rest = b""
    async for chunk in content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > LINE_BYTES_MAX:
            raise Unavailable("a watch sent a line without end")
        for line in lines:
            if line:
                yield line


def _object(text: bytes, call: str) -> Json:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unavailable(f"{call}: the answer is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise Unavailable(f"{call}: the answer is no object")
    return found


def _message(text: str) -> str:
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return text[:200]


def _refusal(code: int | None, message: str) -> TidemillError:
    match code:
        case 404:
            return UnknownCollection(message)
        case 409:
            return AlreadyUsed(message) if "already exists" in message else Fenced(message)
        case 410:
            return Expired(message)
        case 400 | 401 | 403 | 405 | 415 | 422:
            return UsageError(message, reason=str(code))
        case _:
            return Unavailable(message or f"the API server answered {code}")
