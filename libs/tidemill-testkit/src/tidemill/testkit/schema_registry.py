"""A schema registry with the HTTP interface of Confluent's, in the process of the test."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

import fastavro
from aiohttp import web

from tidemill.testkit.http_endpoints import served


@dataclass(slots=True)
class Registry:
    """Registered schemas, and the behaviour of the server: both may be changed at any time."""

    url: str = ""
    away: bool = False
    """Answers 503 to everything."""
    login: tuple[str, str] | None = None
    """Answers 401 to everybody else."""
    texts: dict[int, dict[str, Any]] = field(default_factory=dict)
    subjects: dict[str, list[int]] = field(default_factory=dict)
    asked: list[int] = field(default_factory=list)
    """The numbers that were asked for."""

    def register(
        self,
        subject: str,
        schema: object,
        references: Sequence[Mapping[str, object]] = (),
        kind: str = "AVRO",
    ) -> int:
        """The number of a new schema, the next version of its subject."""
        number = len(self.texts) + 1
        text = schema if isinstance(schema, str) else json.dumps(schema)
        self.texts[number] = {"schema": text, "references": list(references)}
        if kind != "AVRO":
            self.texts[number]["schemaType"] = kind
        self.subjects.setdefault(subject, []).append(number)
        return number

    def record(self, number: int, value: object, references: Sequence[object] = ()) -> bytes:
        """A value of a registered schema as Confluent's serializers write it."""
        named: dict[str, Any] = {}
        for each in references:
            fastavro.parse_schema(each, named)  # type: ignore[arg-type]  # JSON
        stream = BytesIO()
        schema = fastavro.parse_schema(json.loads(self.texts[number]["schema"]), named)
        fastavro.schemaless_writer(stream, schema, value)
        return b"\0" + number.to_bytes(4, "big") + stream.getvalue()

    def _refused(self, request: web.Request) -> web.Response | None:
        if self.away:
            return web.json_response({"error_code": 50003}, status=503)
        if self.login is None:
            return None
        login = base64.b64encode(":".join(self.login).encode()).decode()
        if request.headers.get("Authorization") == f"Basic {login}":
            return None
        return web.json_response({"error_code": 40101}, status=401)

    async def _by_number(self, request: web.Request) -> web.Response:
        number = int(request.match_info["number"])
        self.asked.append(number)
        if refused := self._refused(request):
            return refused
        if number not in self.texts:
            return web.json_response({"error_code": 40403}, status=404)
        return web.json_response(self.texts[number])

    async def _by_version(self, request: web.Request) -> web.Response:
        if refused := self._refused(request):
            return refused
        subject, version = request.match_info["subject"], int(request.match_info["version"])
        numbers = self.subjects.get(subject, [])
        if not 1 <= version <= len(numbers):
            return web.json_response({"error_code": 40402}, status=404)
        number = numbers[version - 1]
        return web.json_response(
            {"subject": subject, "version": version, "id": number, **self.texts[number]}
        )


@asynccontextmanager
async def schema_registry() -> AsyncIterator[Registry]:
    """A registry on a free port of this machine."""
    registry = Registry()
    by_number = web.get("/schemas/ids/{number}", registry._by_number)
    by_version = web.get("/subjects/{subject}/versions/{version}", registry._by_version)
    async with served(by_number, by_version) as registry.url:
        yield registry
