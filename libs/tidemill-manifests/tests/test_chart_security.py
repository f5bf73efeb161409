"""The chart is closed unless it is told otherwise: who has which Secret, account, disk and
image.
"""

from __future__ import annotations

import re
from typing import Any

import helm_python as helm
import pytest

from tidemill.testkit.charts import components, of, rendered

ANYWHERE = [{"ports": [{"port": 443}]}]
SECURE: dict[str, Any] = {
    "stores": {
        "consensus": "redis://redis:6379/0", "blob": "s3://b/p", "blobSecret": "bucket",
        "consensusSecret": "redis",
    },
    "networkPolicy": {"to": {"consensus": ANYWHERE, "blob": ANYWHERE}},
    "tls": {"secret": "front", "serverName": "t"},
    "httpTls": {"secret": "pages", "serverName": "t"},
    "tokens": {"secret": "users", "operatorSecret": "operator-token", "testSecret": "reader-token"},
    "services": {"tls": {"secret": "inner", "serverName": "t"}},
    "roles": {"ingest": {}, "query": {}, "rest": {"role": "remap,reclock,compute,compaction"}},
    "spark": {"enabled": True},
}  # fmt: skip


def without(values: dict[str, Any], *path: str) -> dict[str, Any]:
    """The values without the one at a path."""
    first, *rest = path
    inner = {name: value for name, value in values.items() if name != first}
    return {**inner, first: without(values[first], *rest)} if rest else inner


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({}, "tokens.secret is empty"),
        (without(SECURE, "tokens", "secret"), "tokens.secret is empty"),
        (without(SECURE, "services"), "services.tls.secret is empty"),
        (without(SECURE, "tls"), "tokens would travel in the clear"),
        (without(SECURE, "tokens", "operatorSecret"), "tokens.operatorSecret"),
        ({**SECURE, "operator": {"namespaces": ["air", "rail"]}}, "operator.users.rail"),
    ],
)
def test_k1_an_open_chart_is_not_rendered_unless_that_is_said(
    values: dict[str, Any], says: str
) -> None:
    with pytest.raises(helm.HelmError, match=re.escape(says)):
        rendered(values)


def test_k1_a_chart_is_rendered_that_is_closed_or_said_to_be_open() -> None:
    for values in (SECURE, {"insecure": True}, {**without(SECURE, "services"), "insecure": True}):
        assert rendered(values)
    told = {
        each["name"]: each.get("value")
        for each in components(rendered({"insecure": True}))["whole"][1]["containers"][0]["env"]
    }
    assert told["TIDEMILL_UP_INSECURE"] == "true"


def mounted(spec: dict[str, Any]) -> set[str]:
    """The Secrets of a pod, mounted or in variables."""
    volumes = [v["secret"]["secretName"] for v in spec["volumes"] if "secret" in v]
    projected = [
        s["secret"]["name"] for v in spec["volumes"] for s in v.get("projected", {}).get("sources", ())
    ]  # fmt: skip
    variables = [
        e["valueFrom"]["secretKeyRef"]["name"] for c in spec["containers"] for e in c["env"]
        if "secretKeyRef" in e.get("valueFrom", {})
    ]  # fmt: skip
    return {*volumes, *projected, *variables}


def test_k5_k10_a_secret_is_where_it_is_used_and_nowhere_else() -> None:
    values = {
        **SECURE,
        "operator": {"namespaces": ["air", "rail"], "users": {"rail": "rail-token"}},
    }
    found = {name: mounted(spec) for name, (_, spec) in components(rendered(values)).items()}
    every = {"bucket", "redis", "pages", "inner"}
    assert found == {
        "ingest": every,
        "rest": every,
        "query": every | {"front", "users"},
        # Of the Service's Secret these have the authority alone, and the test asks as a reader.
        "operator": {"front", "operator-token", "rail-token"},
        "test": {"front", "reader-token"},
    }
    for component in ("operator", "test"):
        for volume in components(rendered(values))[component][1]["volumes"]:
            if volume.get("secret", {}).get("secretName") == "front":
                assert [each["key"] for each in volume["secret"]["items"]] == ["ca.crt"]


def test_k10_without_a_reader_there_is_no_test() -> None:
    assert "test" not in components(rendered(without(SECURE, "tokens", "testSecret")))
    assert "test" in components(rendered({"insecure": True}))


def test_k6_each_component_has_an_account_and_few_a_token() -> None:
    objects = rendered(SECURE)
    found = components(objects)
    accounts = {name: spec.get("serviceAccountName") for name, (_, spec) in found.items()}
    assert accounts == {
        "ingest": "one-tidemill-ingest", "query": "one-tidemill-query", "rest": "one-tidemill-rest",
        "operator": "one-tidemill-operator", "test": None,
    }  # fmt: skip
    made = of("ServiceAccount", objects)
    assert set(filter(None, accounts.values())) | {"one-tidemill-spark"} == made.keys()
    assert {n for n, each in made.items() if each.get("automountServiceAccountToken") is not False} == {
        "one-tidemill-operator"
    }  # fmt: skip
    tokens = {n for n, (_, spec) in found.items() if spec.get("automountServiceAccountToken") is not False}  # fmt: skip
    assert tokens == {"operator", "rest"}
    # The account of who launches is bound, and no other.
    bindings = of("RoleBinding", objects)
    subjects = [each["name"] for each in bindings["one-tidemill-launcher"]["subjects"]]
    assert subjects == ["one-tidemill-rest"]
    shared = {**SECURE, "serviceAccount": {"create": False, "name": "mine"}}
    used = {
        spec.get("serviceAccountName") for name, (_, spec) in components(rendered(shared)).items()
        if name != "operator"
    }  # fmt: skip
    assert used == {"mine", None}


def test_k6_accounts_take_annotations_of_all_and_of_one() -> None:
    roles = {**SECURE["roles"], "query": {"serviceAccountAnnotations": {"role": "reader"}}}
    objects = rendered(
        {**SECURE, "roles": roles, "serviceAccount": {"annotations": {"role": "all", "x": "y"}}}
    )
    found = {n: a["metadata"].get("annotations") for n, a in of("ServiceAccount", objects).items()}
    assert found["one-tidemill-query"] == {"role": "reader", "x": "y"}
    assert found["one-tidemill-ingest"] == {"role": "all", "x": "y"}


@pytest.mark.parametrize("values", [SECURE, {"insecure": True, "persistence": {"enabled": False}}])
def test_k7_no_pod_fills_the_disk_of_its_node(values: dict[str, Any]) -> None:
    roles = {**SECURE["roles"], "query": {"resources": {"requests": {"cpu": "1"}}}}
    chosen = {**values, "roles": roles} if "roles" in values else values
    for name, (_, spec) in components(rendered(chosen)).items():
        resources = spec["containers"][0]["resources"]
        assert resources["limits"]["ephemeral-storage"] == "6Gi", name
        assert resources["requests"]["ephemeral-storage"] == "256Mi", name
        sizes = [v["emptyDir"].get("sizeLimit") for v in spec["volumes"] if "emptyDir" in v]
        assert sizes, name
        assert None not in sizes, name
    query = components(rendered({**SECURE, "roles": roles}))["query"][1]["containers"][0]
    assert query["resources"]["requests"]["cpu"] == "1"


def test_k8_each_image_has_a_digest_of_its_own() -> None:
    whole, query = (f"sha256:{letter * 64}" for letter in "aq".replace("q", "b"))
    image = {"digest": whole, "digests": {"query": query}}
    found = {
        name: spec["containers"][0]["image"]
        for name, (_, spec) in components(rendered({**SECURE, "image": image})).items()
    }
    assert found["query"] == found["test"] == f"localhost/tidemill-query@{query}"
    assert found["rest"] == f"localhost/tidemill@{whole}"
    assert found["ingest"] == "localhost/tidemill-ingest:0.1.0"


def test_k2_jobs_have_a_namespace_of_their_own_unless_one_is_named() -> None:
    objects = rendered(SECURE)
    (made,) = of("Namespace", objects).values()
    assert made["metadata"]["name"] == "air-spark"
    assert made["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    named = rendered({**SECURE, "spark": {"enabled": True, "namespace": "jobs", "createNamespace": False}})  # fmt: skip
    assert of("Namespace", named) == {}
    homes = {o["metadata"].get("namespace") for o in named if o["metadata"]["name"].endswith(("-spark", "-launcher"))}  # fmt: skip
    assert homes == {"jobs"}
    assert (
        of("Namespace", rendered({**SECURE, "spark": {"enabled": True, "namespace": "air"}})) == {}
    )


def test_k2_a_driver_may_delete_no_volume_claim_or_service() -> None:
    objects = rendered(SECURE)
    rules = of("Role", objects)["one-tidemill-spark"]["rules"]
    assert {resource for rule in rules for resource in rule["resources"]} == {"pods", "configmaps"}
    launcher = of("Role", objects)["one-tidemill-launcher"]["rules"]
    assert {r for rule in launcher for r in rule["resources"]} == {"pods", "events"}
