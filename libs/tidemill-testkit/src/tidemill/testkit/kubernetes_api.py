"""A small API server of Kubernetes for tests: custom resources, leases and events, over real HTTP.

async with api_server() as api:
        api.put("views", {"metadata": {"name": "late"}, "spec": {…}})

It is faithful in everything that a controller depends on:

* resource versions, generation, and the status subresource;
* list and watch, with 410 after the history was forgotten;
* finalizers that keep a deleted object, preconditions of deletions, selectors;
* server-side apply with owners of fields and conflicts, optimistic concurrency on update.

It has no schemas, no authorisation and no built-in controllers. Faults are put into it one by one,
and are gone once they have happened.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tidemill.testkit.field_owners import Fields, Path, flat, nested
from tidemill.testkit.http_endpoints import served

APPLY = "application/apply-patch+yaml"
Json = dict[str, Any]
"""An object of the API."""


class Refused(Exception):
    """An answer other than success."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.status = {
            "kind": "Status", "apiVersion": "v1", "status": "Failure",
            "code": code, "reason": reason, "message": message,
        }  # fmt: skip


@dataclass(slots=True)
class _Stored:
    """An object as fields, and who applied which of them."""

    fields: Fields
    owners: dict[tuple[str, str], set[Path]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fault:
    """The answer to the next request with this beginning, such as `POST /api/v1`.

    With `after` the request has its effect all the same: only the answer is another.
    """

    request: str
    code: int
    reason: str
    message: str = "put in by the test"
    after: bool = False


Key = tuple[str, str, str]  # plural, namespace, name


class ApiServer:
    """The objects and their history; `address` is where it listens."""

    def __init__(self) -> None:
        self.address = ""
        self.requests: list[str] = []
        self._objects: dict[Key, _Stored] = {}
        self._version = 100
        self._history: list[tuple[int, str, str, Json]] = []
        self._forgotten = 0
        self._news = asyncio.Condition()
        self._cut = 0
        self.faults: list[Fault] = []
        self.undeclared: frozenset[str] = frozenset()
        """Fields of a status that the definitions, being older, do not have."""
        self.happened: list[Fault] = []
        self.created: Callable[[str, Json], None] = lambda plural, document: None
        """Told of every object that a request has made."""

    # -- what a test does beside the controller --------------------------------------------------

    async def put(self, plural: str, document: Json, namespace: str = "default") -> Json:
        """Create the object or replace its metadata and spec, as a user with kubectl would."""
        key = (plural, namespace, document["metadata"]["name"])
        if key not in self._objects:
            return await self._create(plural, namespace, document)
        body = {**self.get(*key), **{k: v for k, v in document.items() if k != "metadata"}}
        body["metadata"] = {**body["metadata"], **document["metadata"]}
        return await self._write(key, flat(body), self._objects[key].owners)

    def get(self, plural: str, namespace: str, name: str) -> Json:
        """The object. Raises: Refused."""
        return nested(self._known((plural, namespace, name)).fields)

    def names(self, plural: str) -> list[str]:
        """The names of all objects of a kind."""
        return sorted(name for kind, _, name in self._objects if kind == plural)

    def listed(self, plural: str) -> list[Json]:
        """All objects of a kind."""
        return [nested(each.fields) for (p, _, _), each in self._objects.items() if p == plural]

    async def delete(self, plural: str, name: str, namespace: str = "default") -> None:
        """Delete the object, or mark it as deleted while it has finalizers."""
        key = (plural, namespace, name)
        stored = self._known(key)
        if nested(stored.fields)["metadata"].get("finalizers"):
            marked = {**stored.fields, ("metadata", "deletionTimestamp"): "2026-01-01T00:00:00Z"}
            await self._write(key, marked, stored.owners)
            return
        await self._forget(key)

    async def say(self, plural: str, name: str, status: Json, namespace: str = "default") -> None:
        """Set the status of an object, as its node or controller would."""
        key = (plural, namespace, name)
        stored = self._known(key)
        kept = {path: value for path, value in stored.fields.items() if path[0] != "status"}
        await self._write(key, {**kept, **flat({"status": status})}, stored.owners)

    async def cut_watches(self) -> None:
        """End every watch without a word, as a connection that breaks does."""
        async with self._news:
            self._cut += 1
            self._news.notify_all()

    async def forget_history(self) -> None:
        """End every watch; resource versions of before are too old from now on."""
        async with self._news:
            self._forgotten = self._version
            self._history.clear()
            self._cut += 1
            self._news.notify_all()

    # -- storage -----------------------------------------------------------------------------------

    def _known(self, key: Key) -> _Stored:
        if key not in self._objects:
            raise Refused(404, "NotFound", f'{key[0]} "{key[2]}" not found')
        return self._objects[key]

    async def _announce(self, what: str, key: Key, document: Json) -> None:
        async with self._news:
            self._history.append((self._version, what, key[0], document))
            self._news.notify_all()

    async def _create(self, plural: str, namespace: str, document: Json) -> Json:
        key = (plural, namespace, document["metadata"]["name"])
        if key in self._objects:
            raise Refused(409, "AlreadyExists", f'{plural} "{key[2]}" already exists')
        self._version += 1
        document = {name: value for name, value in document.items() if name != "status"}
        document["metadata"] = {
            **document["metadata"], "namespace": namespace, "uid": f"uid-{self._version}",
            "generation": 1, "creationTimestamp": f"2026-01-01T00:00:{self._version % 60:02}Z",
            "resourceVersion": str(self._version),
        }  # fmt: skip
        self._objects[key] = _Stored(flat(document))
        made = nested(self._objects[key].fields)
        await self._announce("ADDED", key, made)
        return made

    async def _write(
        self, key: Key, fields: Fields, owners: dict[tuple[str, str], set[Path]]
    ) -> Json:
        """Store changed fields; what changes nothing makes no version."""
        before = self._known(key).fields
        self._objects[key].owners = owners
        if fields == before:
            return nested(before)
        self._version += 1
        fields = {**fields, ("metadata", "resourceVersion"): str(self._version)}
        if _spec(fields) != _spec(before):
            fields["metadata", "generation"] = before["metadata", "generation"] + 1
        self._objects[key].fields = fields
        document = nested(fields)
        if "deletionTimestamp" in document["metadata"] and not document["metadata"].get(
            "finalizers"
        ):
            await self._forget(key)
        else:
            await self._announce("MODIFIED", key, document)
        return document

    async def _forget(self, key: Key) -> None:
        document = nested(self._objects.pop(key).fields)
        self._version += 1
        document["metadata"]["resourceVersion"] = str(self._version)
        await self._announce("DELETED", key, document)

    async def _apply(self, key: Key, part: str, manager: str, force: bool, body: Json) -> Json:
        """Server-side apply of the main object or of a subresource."""
        if key not in self._objects:
            if "uid" in body["metadata"] or part:
                raise Refused(409 if not part else 404, "Conflict", "no existing object was found")
            return await self._create(key[0], key[1], body)
        for name in sorted(self.undeclared & body.get("status", {}).keys()):
            says = (
                f"failed to create typed patch object: .status.{name}: field not declared in schema"
            )
            raise Refused(500, "InternalError", says)
        stored = self._objects[key]
        uid = body["metadata"].get("uid")
        if uid not in (None, stored.fields["metadata", "uid"]):
            raise Refused(409, "Conflict", "Precondition failed: UID in precondition")
        ours = {
            path: value for path, value in flat(body).items()
            if (path[0] == "status") == (part == "status")
            and path[0] not in ("apiVersion", "kind")
            and path[:2] not in {("metadata", n) for n in ("name", "namespace", "uid")}
        }  # fmt: skip
        owners = {each: set(paths) for each, paths in stored.owners.items()}
        others = {p for each, paths in owners.items() if each != (manager, part) for p in paths}
        taken = [p for p, v in ours.items() if p in others and stored.fields.get(p, v) != v]
        if taken and not force:
            raise Refused(409, "Conflict", f"fields are owned by others: {taken}")
        for each in owners:
            if each != (manager, part):
                owners[each] -= set(taken)
        dropped = owners.get((manager, part), set()) - ours.keys() - others
        owners[manager, part] = set(ours)
        kept = {path: value for path, value in stored.fields.items() if path not in dropped}
        return await self._write(key, {**kept, **ours}, owners)

    # -- HTTP
    # ----------------------------------------------------------------------------------------

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Any request below /apis or /api."""
        self.requests.append(f"{request.method} {request.path}")
        parts = [part for part in request.path.split("/") if part]
        parts = parts[2:] if parts[0] == "api" else parts[3:]
        namespace = ""
        if parts[0] == "namespaces":
            namespace, parts = parts[1], parts[2:]
        plural, name, part = (*parts, "", "")[:3]
        fault = self._fault(f"{request.method} {request.path_qs}")
        try:
            if fault is not None and not fault.after:
                raise Refused(fault.code, fault.reason, fault.message)
            if request.method == "GET" and not name and request.query.get("watch"):
                return await self._watch(request, plural, namespace)
            answer = await self._answer(request, plural, namespace, name, part)
            if fault is not None:
                raise Refused(fault.code, fault.reason, fault.message)
            return web.json_response(answer)
        except Refused as refused:
            return web.json_response(refused.status, status=refused.code)

    def _fault(self, request: str) -> Fault | None:
        found = next((each for each in self.faults if request.startswith(each.request)), None)
        if found is not None:
            self.faults.remove(found)
            self.happened.append(found)
        return found

    async def _answer(
        self, request: web.Request, plural: str, namespace: str, name: str, part: str
    ) -> Json:
        key = (plural, namespace, name)
        match request.method:
            case "GET" if name:
                return self.get(*key)
            case "GET":
                items = [
                    nested(each.fields) for (p, n, _), each in self._objects.items()
                    if p == plural and namespace in ("", n)
                ]  # fmt: skip
                items = [each for each in items if _selected(each, request.query)]
                return {"metadata": {"resourceVersion": str(self._version)}, "items": items}
            case "POST":
                made = await self._create(plural, namespace, await request.json())
                self.created(plural, made)
                return made
            case "DELETE":
                text = await request.text()
                wanted = json.loads(text or "{}").get("preconditions", {}).get("uid")
                if wanted not in (None, self.get(*key)["metadata"]["uid"]):
                    raise Refused(409, "Conflict", "the UID in the precondition is another")
                await self.delete(plural, name, namespace)
                return {"status": "Success"}
        body = json.loads(await request.text())
        if request.method == "PATCH":
            if request.content_type != APPLY:
                raise Refused(415, "UnsupportedMediaType", request.content_type)
            force = request.query.get("force") == "true"
            return await self._apply(key, part, request.query["fieldManager"], force, body)
        stored = self._known(key)
        expected = body["metadata"].get("resourceVersion")
        if expected not in (None, stored.fields["metadata", "resourceVersion"]):
            raise Refused(409, "Conflict", "the object has been modified")
        return await self._write(key, flat(body), stored.owners)

    async def _watch(self, request: web.Request, plural: str, namespace: str) -> web.StreamResponse:
        reply = web.StreamResponse(headers={"Content-Type": "application/json"})
        await reply.prepare(request)
        seen, cut = int(request.query["resourceVersion"]), self._cut
        while True:
            async with self._news:
                if seen < self._forgotten:
                    gone = Refused(410, "Expired", f"too old resource version: {seen}").status
                    await reply.write(_line("ERROR", gone))
                    return reply
                found = [each for each in self._history if each[0] > seen]
                if not found:
                    if self._cut != cut:
                        return reply
                    await self._news.wait()
                    continue
            for version, what, kind, document in found:
                seen = version
                here = namespace in ("", document["metadata"]["namespace"])
                if kind == plural and here and _selected(document, request.query):
                    await reply.write(_line(what, document))


def _line(what: str, document: Mapping[str, Any]) -> bytes:
    return json.dumps({"type": what, "object": document}).encode() + b"\n"


def _selected(document: Json, query: Mapping[str, str]) -> bool:
    """Whether the selectors of a request, all of them equalities, name an object."""
    metadata = document["metadata"]
    labels = dict(e.split("=") for e in query.get("labelSelector", "").split(",") if e)
    fields = dict(e.split("=") for e in query.get("fieldSelector", "").split(",") if e)
    assert set(fields) <= {"metadata.name"}
    named = fields.get("metadata.name") in (None, metadata["name"])
    return named and labels.items() <= metadata.get("labels", {}).items()


def _spec(fields: Fields) -> Fields:
    return {path: value for path, value in fields.items() if path[0] == "spec"}


@asynccontextmanager
async def api_server() -> AsyncIterator[ApiServer]:
    """A server on a free port of loopback."""
    api = ApiServer()
    async with served(web.route("*", "/{path:.*}", api.answer)) as api.address:
        try:
            yield api
        finally:
            await api.forget_history()
