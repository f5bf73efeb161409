"""Names of one namespace are neither read nor taken by another, unless they are granted there."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
from kubernetes.aio.client.configuration import Configuration

from tidemill.errors import Denied, Unauthenticated
from tidemill.kubernetes.api import KubernetesApi
from tidemill.rpc.messages import Applied, CollectionInfo, ResourceDocument, ResourceStatus
from tidemill.runtime.clock import SystemClock
from tidemill.testkit.catalog_memory import MemoryCatalog
from tidemill.testkit.kubernetes_api import ApiServer, Fault, api_server
from tidemill_operator.driver import Operator
from tidemill_operator.granting import ungranted
from tidemill_operator.objects import (
    FINALIZER,
    PLURALS,
    READ_BY,
    Declared,
    collection_path,
    declared,
)
from tidemill_operator.reconciling import Apply, Remove, RemoveFinalizer, changes, owners
from tidemill_operator.settings import OperatorSettings
from tidemill_operator.tidemill_side import Tidemill, document_of, everything

COLUMNS = [{"name": "n", "type": "int"}]


def one(kind: str, namespace: str, name: str, spec: dict[str, Any], **more: Any) -> Declared:
    return Declared(kind, namespace, name, f"{namespace}-{name}", 1, "2026-01-01", spec, **more)


def table(namespace: str, name: str, **more: Any) -> Declared:
    return one("Table", namespace, name, {"columns": COLUMNS}, **more)


def view(namespace: str, name: str, program: str, **inputs: str) -> Declared:
    return one("View", namespace, name, {"program": program, "inputs": inputs})


@dataclass
class Limited:
    """A catalog as a user sees it who is an admin of names with a prefix; `away` refuses the
    token.
    """

    catalog: MemoryCatalog
    prefix: str
    away: bool = False

    def _demand(self, name: str) -> None:
        if self.away:
            raise Unauthenticated("a token that nobody knows")
        if not name.startswith(self.prefix):
            raise Denied(f"{self.prefix}* lacks the role admin over {name}")

    async def get(self, kind: str | None = None, name: str | None = None) -> list[ResourceStatus]:
        self._demand(self.prefix)
        return [each for each in await self.catalog.get() if each.name.startswith(self.prefix)]

    async def collections(self) -> list[CollectionInfo]:
        self._demand(self.prefix)
        return [each for each in await self.catalog.collections() if each.id[:1] == self.prefix]

    async def apply(self, documents: Sequence[ResourceDocument]) -> Sequence[Applied]:
        for document in documents:
            self._demand(document.text.partition('"name": "')[2])
        return await self.catalog.apply(documents)

    async def delete(self, kind: str, name: str) -> None:
        self._demand(name)
        await self.catalog.delete(kind, name)


@asynccontextmanager
async def operating(
    api: ApiServer, acting_for: Callable[[str], Tidemill | None]
) -> AsyncIterator[Callable[[], Any]]:
    """One look of an operator of all namespaces at a time."""
    configuration = Configuration()
    configuration.host = api.address
    kubernetes = KubernetesApi(configuration, "tidemill-operator")

    def objects() -> list[Declared]:
        return [
            declared(kind, document)
            for kind, plural in PLURALS.items()
            for document in api.listed(plural)
        ]

    settings = OperatorSettings(status_interval_s=0.0)
    operator = Operator(kubernetes, acting_for, objects, lambda: True, SystemClock(), settings)
    yield operator.reconcile
    await kubernetes.close()


def stored(kind: str, name: str, **more: Any) -> dict[str, Any]:
    spec = {"columns": COLUMNS} if kind == "Table" else more.pop("spec")
    return {"metadata": {"name": name, **more}, "spec": spec}


def condition(document: dict[str, Any], kind: str) -> tuple[str, str]:
    found = [c for c in document["status"]["conditions"] if c["type"] == kind]
    return found[0]["status"], found[0]["reason"]


@pytest.mark.parametrize(
    "reader",
    [
        view("b", "v", "p(x) := q(x);", q="flights"),
        view("b", "v", "p(x) := q(x);", q="flights/deadletters"),
        view("b", "v", "p(x) := flights(x);"),
        view("b", "v", "p(x) := other(x) ^ not flights(x);"),
        view("b", "v", "p(x) := salary(x);"),
        view("b", "v", "p(x) := q(x);", q="payroll/salary"),
        one("Action", "b", "v", {"view": "payroll", "goal": "salary(x)", "sink": {"log": {"topic": "t"}}}),
        one("Arrangement", "b", "v", {"collection": "salary", "key": ["x"]}),
        one("Hold", "b", "v", {"collection": "flights"}),
    ],
    ids=lambda reader: f"{reader.kind} {list(reader.spec.values())}",
)  # fmt: skip
def test_k3_every_way_to_name_what_is_anothers_needs_a_grant(reader: Declared) -> None:
    flights = table("a", "flights")
    payroll = view("a", "payroll", "salary(x) := flights(x);")
    objects = [flights, payroll, reader]
    first = owners(objects, {})
    assert f'annotate it with {READ_BY}: "b"' in (ungranted(reader, objects, first, {}) or "")
    for granted in ("b", "c, b", "*"):
        notes = {READ_BY: granted}
        objects = [replace(flights, annotations=notes), replace(payroll, annotations=notes), reader]
        assert ungranted(reader, objects, first, {}) is None
    wrong = [replace(o, annotations={READ_BY: "bb,c"}) for o in objects[:2]]
    assert ungranted(reader, [*wrong, reader], first, {}) is not None
    own = [replace(o, namespace="b") for o in objects[:2]]
    assert ungranted(reader, [*own, reader], first, {}) is None


async def test_k3_what_has_no_object_any_more_still_belongs_to_its_namespace() -> None:
    catalog = MemoryCatalog()
    await catalog.apply([document_of(table("a", "flights"))])
    known = await everything(catalog)
    reader = view("b", "v", "p(x) := flights(x);")
    assert "belongs to the namespace a" in (ungranted(reader, [reader], {}, known) or "")


async def test_k3_a_view_waits_for_the_grant_and_for_nothing_else() -> None:
    catalog = MemoryCatalog()
    async with api_server() as api, operating(api, lambda _: catalog) as look:
        await api.put("tables", stored("Table", "flights"), "a")
        spec = {"program": "p(x) := flights(x);"}
        await api.put("views", stored("View", "late", spec=spec), "b")
        await look()
        await look()
        assert set(catalog.resources) == {("Table", "flights")}
        late = api.get("views", "b", "late")
        assert condition(late, "Ready") == ("False", "NotGranted")
        assert [e["message"] for e in api.listed("events") if e["reason"] == "NotGranted"]
        await api.put("tables", stored("Table", "flights", annotations={READ_BY: "b"}), "a")
        await look()
        assert catalog.resources["View", "late"].namespace == "b"
        await look()
        assert condition(api.get("views", "b", "late"), "Ready") == ("True", "Running")


async def test_k3_each_namespace_acts_by_its_own_user_and_no_name_is_squatted() -> None:
    catalog = MemoryCatalog()
    users = {"a": Limited(catalog, "a"), "b": Limited(catalog, "b")}
    async with api_server() as api, operating(api, users.get) as look:
        # The older object is of a namespace whose user may not have the name.
        await api.put("tables", stored("Table", "a-flights"), "b")
        await api.put("tables", stored("Table", "b-own"), "b")
        await api.put("tables", stored("Table", "a-flights"), "a")
        await look()
        assert {key: r.namespace for key, r in catalog.resources.items()} == {
            ("Table", "a-flights"): "a", ("Table", "b-own"): "b",
        }  # fmt: skip
        squatting = api.get("tables", "b", "a-flights")
        assert condition(squatting, "Ready") == ("False", "Denied")
        assert condition(api.get("tables", "a", "a-flights"), "Ready")[0] == "True"
        # Nor does its deletion delete what is another's.
        await api.delete("tables", "a-flights", "b")
        await look()
        assert ("Table", "a-flights") in catalog.resources


@pytest.mark.parametrize("how", ["no user", "a token that nobody knows"])
async def test_k3_a_namespace_without_a_user_takes_no_other_with_it(how: str) -> None:
    catalog = MemoryCatalog()
    users = {"a": Limited(catalog, "a"), "b": Limited(catalog, "b")}
    async with api_server() as api, operating(api, users.get) as look:
        await api.put("tables", stored("Table", "b-old"), "b")
        await look()
        if how == "no user":
            del users["b"]
        else:
            users["b"].away = True
        await api.put("tables", stored("Table", "b-new"), "b")
        await api.put("tables", stored("Table", "a-new"), "a")
        await api.delete("tables", "b-old", "b")
        await look()
        assert set(catalog.resources) == {("Table", "b-old"), ("Table", "a-new")}
        assert condition(api.get("tables", "b", "b-new"), "Ready") == ("False", "NoUser")
        assert "b-old" in api.names("tables")  # it goes once somebody may delete its table


@pytest.mark.parametrize(
    "told",
    ["POST /api/v1/namespaces/a/events", f"PATCH {collection_path('tables', 'a')}/a-new/status"],
)
async def test_a1_what_cannot_be_told_of_one_object_holds_up_no_other(told: str) -> None:
    """A1: a namespace that ends takes no events, so that whoever keeps one from ending silenced the
    operator.
    """
    catalog = MemoryCatalog()
    users = {"a": Limited(catalog, "a"), "b": Limited(catalog, "b")}
    async with api_server() as api, operating(api, users.get) as look:
        for name in users:
            await api.put("tables", stored("Table", f"{name}-new"), name)
        api.faults.append(Fault(told, 403, "Forbidden", "the namespace is being terminated"))
        await look()
        assert api.happened
        assert condition(api.get("tables", "b", "b-new"), "Ready")[0] == "True"
        assert any(
            request.startswith("POST /api/v1/namespaces/b/events") for request in api.requests
        )


def test_k3_a_token_is_that_of_a_namespace_and_of_no_other() -> None:
    open_to_all = OperatorSettings(lease_namespace="air")
    assert open_to_all.token_of("air") == open_to_all.token_of("rail") == ""
    asked = OperatorSettings(lease_namespace="air", token_file="own", users={"rail": "theirs"})
    assert [asked.token_of(each) for each in ("air", "rail", "sea")] == ["own", "theirs", None]
    others = OperatorSettings(lease_namespace="air", users={"rail": "theirs"})
    assert others.token_of("air") is None


async def test_k9_a_dormant_namesake_does_not_become_the_owner_after_a_restore() -> None:
    catalog = MemoryCatalog()
    owner = table("a", "flights", finalizers=(FINALIZER,))
    await catalog.apply([document_of(owner)])
    known = await everything(catalog)
    # Times of creation are those of the restore, and the namesake came first.
    restored = replace(owner, created="2026-02-02T00:00:09Z")
    namesake = replace(owner, namespace="b", uid="namesake", created="2026-02-02T00:00:01Z")
    objects = [namesake, restored]
    assert owners(objects, known) == {owner.key: owner.uid}
    assert changes(objects, known) == []
    assert changes([replace(namesake, deleting=True), restored], known) == [
        RemoveFinalizer(replace(namesake, deleting=True))
    ]
    assert changes([replace(restored, deleting=True), namesake], known) == [
        Remove(replace(restored, deleting=True))
    ]
    # Of what Tidemill has not, the first object is the owner, as ever.
    assert changes(objects, {}) == [Apply(namesake)]
    # Nor is it adopted by another namespace when its object is gone.
    assert changes([namesake], known) == []
