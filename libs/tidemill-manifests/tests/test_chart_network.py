"""Reachability of every pair of components and neighbours, under the policies that the chart
renders.

The policies are evaluated, not enforced: no network is asked. `reaches` is tested on its own.
"""

from __future__ import annotations

import re
from typing import Any

import helm_python as helm
import pytest

from tidemill.testkit.charts import NAMESPACE, components, of, rendered
from tidemill.testkit.network_policies import NAME, Place, reaches

JOBS = f"{NAMESPACE}-spark"


def at(namespace: str, port: int, **labels: str) -> list[dict[str, Any]]:
    peer = {"namespaceSelector": {"matchLabels": {NAME: namespace}}}
    if labels:
        peer["podSelector"] = {"matchLabels": labels}
    return [{"to": [peer], "ports": [{"protocol": "TCP", "port": port}]}]


VALUES: dict[str, Any] = {
    "insecure": True,
    "stores": {"consensus": "redis://redis:6379/0", "blob": "s3://b/p"},
    "kafka": "kafka:9092",
    "spark": {"enabled": True},
    "networkPolicy": {
        "from": [{"namespaceSelector": {"matchLabels": {NAME: "apps"}}}],
        "scrapers": [{"namespaceSelector": {"matchLabels": {NAME: "monitoring"}}}],
        "to": {
            "consensus": at("servers", 6379, app="redis"),
            "blob": at("servers", 9000, app="objects"),
            "kafka": at("servers", 9092, app="kafka"),
            "sources": at("suppliers", 9093),
            "sinks": at("hooks", 443),
            "apiServer": [{"to": [{"ipBlock": {"cidr": "192.0.2.1/32"}}], "ports": [{"port": 6443}]}],
        },
    },
}  # fmt: skip
ROLES = {
    "ingest": {}, "remap": {}, "compute": {}, "query": {}, "rest": {"role": "reclock,compaction"},
}  # fmt: skip
OTHERS = {
    "redis": Place("servers", {"app": "redis"}),
    "objects": Place("servers", {"app": "objects"}),
    "kafka": Place("servers", {"app": "kafka"}),
    "supplier": Place("suppliers", {"app": "kafka"}),
    "hook": Place("hooks"),
    "dns": Place("kube-system", {"k8s-app": "kube-dns"}),
    "api": Place("", address="192.0.2.1"),
    "metadata": Place("", address="169.254.169.254"),
    "app": Place("apps"),
    "prometheus": Place("monitoring"),
    "neighbour": Place(NAMESPACE, {"app": "neighbour"}),
    "stranger": Place("rail"),
    "job-neighbour": Place(JOBS, {"app": "neighbour"}),
    "driver": Place(
        JOBS,
        {"app.kubernetes.io/name": "tidemill-spark", "app.kubernetes.io/component": "spark-driver"},
    ),
    "executor": Place(
        JOBS,
        {
            "app.kubernetes.io/name": "tidemill-spark",
            "app.kubernetes.io/component": "spark-executor",
        },
    ),
}
PORTS = (53, 443, 6379, 6443, 7078, 7079, 7473, 7474, 7475, 7476, 9000, 9092, 9093)
STORES = {"redis:6379", "objects:9000", "kafka:9092"}
SERVING = {f"{role}:7473" for role in ROLES}


def matrix(values: dict[str, Any]) -> dict[str, set[str]]:
    """Component → what it reaches, and neighbour → which components it reaches; names by UDP
    aside.
    """
    objects = rendered(values)
    policies = [
        {**each, "metadata": {"namespace": NAMESPACE, **each["metadata"]}}
        for each in objects
        if each["kind"] == "NetworkPolicy"
    ]
    ours = {
        name: Place(NAMESPACE, metadata["labels"])
        for name, (metadata, _) in components(objects).items()
    }
    places = {**OTHERS, **ours}
    inner = {*ours, "driver", "executor"}
    return {
        sender: {
            f"{receiver}:{port}"
            for receiver in places
            for port in PORTS
            if sender != receiver
            and {sender, receiver} & inner
            and reaches(policies, places[sender], places[receiver], port)
        }
        for sender in places
    }


def without_own(found: set[str], sender: str) -> set[str]:
    return {each for each in found if not each.startswith(f"{sender}:")}


def test_k1_k4_each_role_reaches_what_it_needs_and_nothing_else() -> None:
    found = matrix({**VALUES, "roles": ROLES})
    expected = {
        "ingest": SERVING | STORES | {"supplier:9093"},
        "remap": SERVING | STORES,
        "compute": SERVING | STORES | {"hook:443", "api:6443"},  # it launches jobs
        "query": SERVING | STORES | {"supplier:9093"},
        "rest": SERVING | STORES | {"api:6443"},
        "operator": {"query:7474", "api:6443"},
        "test": {"query:7474"},
        "driver": {"objects:9000", "kafka:9092", "supplier:9093", "api:6443"}
        | {f"executor:{port}" for port in PORTS},
        "executor": {"objects:9000", "kafka:9092", "supplier:9093"}
        | {f"driver:{port}" for port in PORTS},
        "app": {"query:7474", "query:7475"},
        "prometheus": {f"{role}:7475" for role in ROLES} | {"operator:7476"},
    }
    for sender, reached in found.items():
        names = (
            {"dns:53"} if sender in (*ROLES, "operator", "test", "driver", "executor") else set()
        )
        assert reached == without_own(expected.get(sender, set()), sender) | names, sender


def test_k1_k4_one_pod_with_everything_reaches_what_all_roles_do() -> None:
    found = matrix(VALUES)
    assert found["whole"] == STORES | {"supplier:9093", "hook:443", "api:6443", "dns:53"}
    assert found["operator"] == {"whole:7474", "api:6443", "dns:53"}
    assert found["app"] == {"whole:7474", "whole:7475"}
    assert found["prometheus"] == {"whole:7475", "operator:7476"}
    for sender in ("neighbour", "stranger", "job-neighbour", "redis", "driver", "executor"):
        assert not {each for each in found[sender] if each.startswith(("whole", "operator"))}


def test_k1_policies_are_on_unless_somebody_says_otherwise() -> None:
    found = matrix({"insecure": True})
    for sender in ("neighbour", "stranger", "app"):
        assert not {each for each in found[sender] if each.startswith(("whole", "operator"))}
    assert found["whole"] == {"dns:53"}
    off = rendered({"insecure": True, "networkPolicy": {"enabled": False}})
    assert of("NetworkPolicy", off) == {}


@pytest.mark.parametrize("what", ["consensus", "blob", "kafka"])
def test_k4_a_store_that_nobody_could_reach_is_refused(what: str) -> None:
    policies = {**VALUES["networkPolicy"], "to": {**VALUES["networkPolicy"]["to"], what: []}}
    with pytest.raises(helm.HelmError, match=re.escape(f"networkPolicy.to.{what}")):
        rendered({**VALUES, "networkPolicy": policies})
    rendered({**VALUES, "networkPolicy": {**policies, "enabled": False}})
