"""A whole system in the process of a test, asked over HTTP."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pyarrow as pa

from tidemill.errors import Unauthenticated
from tidemill.rpc.identity import Grant, Principal
from tidemill.rpc.messages import ResourceDocument
from tidemill.runtime.http_server import HttpLimits
from tidemill.testkit.whole import Whole, opened, served_over_http
from tidemill_server.settings import ServerSettings

TABLE = """
apiVersion: tidemill.dev/v1alpha1
kind: Table
metadata: {name: delays}
spec: {columns: [{name: plane, type: text}, {name: delay, type: int}, {name: gate, type: text, nullable: true}], retain: all}
"""
VIEW = """
apiVersion: tidemill.dev/v1alpha1
kind: View
metadata: {name: late}
spec: {retain: all, program: "late(plane: p, delay: d) := delays(p, d, g) if d >= 30;"}
"""
ROWS = pa.table(
    {"plane": ["N1", "N2", "N3"], "delay": [5, 45, 30], "gate": pa.array(["A", "B", None])}
)


@dataclass(frozen=True)
class Said:
    """An answer over HTTP."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


@dataclass(frozen=True)
class Web:
    """A running system, asked over HTTP."""

    whole: Whole
    address: str
    session: aiohttp.ClientSession

    async def ask(self, path: str, method: str = "GET", **sent: Any) -> Said:
        """The answer to one request."""
        async with self.session.request(method, f"{self.address}{path}", **sent) as answer:
            return Said(answer.status, answer.headers, await answer.read())

    async def insert(self, rows: pa.Table = ROWS, table: str = "delays") -> int:
        """When the rows were there."""
        return (await self.whole.controller.insert(table, rows)).time


class Named:
    """Tokens that are the names of their users."""

    def __init__(self, **grants: Grant) -> None:
        self._grants = grants

    def rename(self, name: str, other: str) -> None:
        """From now on the token is the other name."""
        self._grants[other] = self._grants.pop(name)

    def principal(self, metadata: Mapping[str, str], identities: object) -> Principal:
        """The user that is named. Raises: Unauthenticated."""
        name = metadata.get("authorization", "").removeprefix("Bearer ")
        if name not in self._grants:
            raise Unauthenticated("this server asks for a token")
        return Principal(name, (self._grants[name],))


@asynccontextmanager
async def web(
    folder: Path,
    users: Named | None = None,
    limits: HttpLimits | None = None,
    system: Mapping[str, Any] | None = None,
) -> AsyncIterator[Web]:
    """A system with a table and a view over it, whose `system` are settings."""
    chosen = ServerSettings(directory=str(folder / "state"), **(system or {}))
    async with opened(chosen) as whole:
        await whole.start()
        await whole.controller.apply([ResourceDocument(TABLE + "---" + VIEW, "test.yaml")])
        async with (
            served_over_http(whole, users, limits) as address,
            aiohttp.ClientSession() as session,
        ):
            yield Web(whole, address, session)
