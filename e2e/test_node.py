"""The whole system in pods on a real node: installed by Helm, fed through Kafka, asked from
outside.

One story, told in the order of this file. Every test begins where the one before ended: run the
file whole and with -x, by infra/kubernetes/e2e.sh.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from urllib.parse import quote
from urllib.request import urlopen

import pytest

from e2e.cluster import CHART, MANIFESTS, RELEASE, ROOT, SERVERS, SYSTEM, Cluster, said, until
from e2e.flights import Flights
from tidemill_flights.runner import VIEWS
from tidemill_flights.scenario import QUICK

PREVIOUS = ROOT / "e2e/previous/tidemill-0.1.0.tgz"
VALUES = ("-f", str(MANIFESTS / "values.yaml"))
SAID = ("-f", str(MANIFESTS / "previous.yaml"))
FILES = (*VALUES, "-f", str(MANIFESTS / "files.yaml"))
WITHOUT_FILES = ("weather-at-departure", "network")
"""Views that read streams alone: they work before the reference files are there."""
ROLES = ("ingest", "remap", "reclock", "compute", "compaction", "query")
KINDS = list((CHART / "charts/crds/templates").glob("*.yaml"))
EXAMPLES = ROOT / "examples/flights/resources"


@pytest.fixture(scope="module")
def flights(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flights]:
    scenario = os.environ.get("FLIGHTS", "year")
    made = Flights.prepared(tmp_path_factory.mktemp("flights"), scenario)
    yield made
    made.client.close()
    made.oracle.connection.close()


def test_servers_of_others_run(cluster: Cluster) -> None:
    """Kafka, Redis, an S3 server and Prometheus from plain manifests."""
    for manifests in ("namespaces.yaml", "servers"):
        said("kubectl", "apply", "-f", str(MANIFESTS / manifests))
    cluster.settled(SERVERS)


def test_the_previous_chart_is_installed(cluster: Cluster, flights: Flights) -> None:
    """Roles as Deployments, over Kafka, Redis and S3 by reference, in a restricted namespace."""
    for name in ("redis", "objects"):  # Secrets are of one namespace
        secret = cluster.objects(
            "secrets", f"--field-selector=metadata.name={name}", namespace=SERVERS
        )
        copy = {**secret[0], "metadata": {"name": name}}
        cluster.kubectl("apply", "-f", "-", text=json.dumps(copy))
    cluster.helm("install", RELEASE, str(PREVIOUS), *VALUES, *SAID)
    cluster.settled()
    flights.create_topics()


def test_the_yaml_of_the_demo_makes_its_views(cluster: Cluster, flights: Flights) -> None:
    """kubectl apply, records in Kafka: two views answer; what lacks its files says so."""
    for file in (EXAMPLES / "sources.yaml", EXAMPLES / "views.yaml", MANIFESTS / "actions.yaml"):
        cluster.kubectl("apply", "-f", str(file))
    flights.send(QUICK.backlog_until)

    def streams_ready() -> bool:
        reasons = cluster.reasons()
        return all(reasons[f"View/{view}"][0] == "True" for view in WITHOUT_FILES)

    until(streams_ready, f"views of streams are not ready: {cluster.reasons()}")
    assert cluster.reasons()["Source/planes"][0] == "False"
    flights.complete(WITHOUT_FILES)
    assert flights.differences(QUICK.instants[0], WITHOUT_FILES) == []


def test_helm_upgrade_from_the_previous_chart_keeps_data(
    cluster: Cluster, flights: Flights
) -> None:
    """This chart mounts the reference files; all views catch up and answer the first instant."""
    data = [f"--from-file={file}" for file in sorted((flights.folder / "data").iterdir())]
    cluster.kubectl("create", "configmap", "reference", *data)
    cluster.kubectl("apply", "-f", str(MANIFESTS / "claims.yaml"))
    cluster.helm("upgrade", RELEASE, str(CHART), *FILES)
    cluster.settled()
    assert flights.differences(QUICK.instants[0], WITHOUT_FILES) == []

    def ready() -> bool:
        return all(status == "True" for status, _ in cluster.reasons().values())

    until(ready, f"not ready: {cluster.reasons()}")
    flights.complete()
    assert flights.differences(QUICK.instants[0]) == []


def test_helm_test_runs(cluster: Cluster) -> None:
    assert "Succeeded" in cluster.helm("test", RELEASE)


def test_kubectl_get_shows_frontiers(cluster: Cluster) -> None:
    rows = {row["NAME"]: row for row in cluster.table("views")}
    assert list(rows) == sorted(VIEWS)
    for row in rows.values():
        assert list(row) == ["NAME", "READY", "SINCE", "UPPER", "LAG", "AGE"]
        assert row["READY"] == "True"
        assert row["UPPER"].startswith("2013-") or row["UPPER"].isdigit(), row
    wide = cluster.table("views", "-o", "wide")
    assert {"HOLDERS", "BATCHES", "BYTES"} <= set(wide[0])
    cluster.note("kubectl get views", "\n" + cluster.kubectl("get", "views"))


def test_prometheus_sees_every_pod(cluster: Cluster) -> None:
    """Metrics of every role and of the operator, and lags of collections."""

    def queried(expression: str) -> dict[str, float]:
        url = f"http://prometheus.{SERVERS}.svc.cluster.local:9090/api/v1/query?query={quote(expression)}"
        with urlopen(url, timeout=10) as reply:
            found = json.loads(reply.read())["data"]["result"]
        return {each["metric"].get("instance", ""): float(each["value"][1]) for each in found}

    def all_up() -> bool:
        wanted = {
            f"{pod['status']['podIP']}:{7476 if component == 'operator' else 7475}": 1.0
            for pod in cluster.objects("pods", "-l", "app.kubernetes.io/name=tidemill")
            if (component := pod["metadata"]["labels"]["app.kubernetes.io/component"]) != "test"
        }
        return len(wanted) >= len(ROLES) + 1 and queried("up") == wanted

    until(all_up, "Prometheus does not see every pod")
    lags = queried(
        'count(tidemill_collection_upper_lag_seconds{collection=~"flights/raw|weather/raw"})'
    )
    assert lags.get("") == 2, lags


def test_memory_at_rest(cluster: Cluster) -> None:
    """Every pod but Kafka's and Prometheus', each with its working set, beside eleven days."""
    used, together = at_rest(cluster, "eleven days")
    assert together <= 1300
    for role in ("ingest", "remap"):
        assert all(used[f"{SYSTEM}/{pod}"] <= 110 for pod in cluster.pods(role)), role


def test_a_backlog_is_taken_in(cluster: Cluster, flights: Flights) -> None:
    """Half a year of rows, all of them alive, is answered right and is in the memory of views."""
    scenario = flights.scenario
    began, sent = time.monotonic(), flights.send(scenario.backlog_until)
    flights.complete()
    cluster.note("backlog", f"{sent:,} records in {time.monotonic() - began:.0f} s")
    assert flights.differences(scenario.instants[0]) == []
    assert at_rest(cluster, "the backlog")[1] <= 1800


def at_rest(cluster: Cluster, beside: str) -> tuple[dict[str, int], int]:
    """MiB of each pod by namespace/name, and of all together but Kafka's and Prometheus'."""
    time.sleep(15)  # the kubelet measures every ten seconds
    used = cluster.memory_mib()
    together = sum(
        mib for pod, mib in used.items() if not pod.startswith(("servers/kafka", "servers/prom"))
    )
    for pod, mib in sorted(used.items()):
        cluster.note(f"memory of {pod} beside {beside}", f"{mib} MiB")
    cluster.note(f"memory beside Kafka and Prometheus, and {beside}", f"{together} MiB")
    return used, together


def test_a_killed_pod_of_each_service_is_made_up_for(cluster: Cluster, flights: Flights) -> None:
    """SIGKILL of all pods of a role, one role after the other, while the stream goes on."""
    scenario = flights.scenario
    width = (scenario.kill_at - scenario.backlog_until) // len(ROLES)
    for number, role in enumerate(ROLES, 1):
        victims = cluster.pods(role)
        cluster.kubectl("delete", "pod", "--force", "--grace-period=0", *victims)
        killed = time.monotonic()
        sent_until = scenario.backlog_until + number * width
        flights.send(sent_until)
        until(partial(_equal, flights, scenario.instants[0]), f"no right answers without {role}")
        answered_s = time.monotonic() - killed
        flights.complete()
        caught_up_s = time.monotonic() - killed
        cluster.settled()
        assert not set(victims) & set(cluster.pods(role))
        cluster.note(
            f"{role} killed ({len(victims)} pods)",
            f"right answers after {answered_s:.1f} s, caught up with what was sent after {caught_up_s:.1f} s",
        )
    assert flights.differences(scenario.instants[1]) == []


def test_the_lease_of_the_operator_moves_when_its_node_is_drained(cluster: Cluster) -> None:
    """Cordoned, its holder evicted: the other replica works; then the node takes pods again."""

    def holder() -> str:
        (lease,) = cluster.objects("leases")
        return str(lease["spec"]["holderIdentity"])

    first = holder()
    assert first in cluster.pods("operator")
    said("kubectl", "cordon", "node")
    try:
        evicted = time.monotonic()
        cluster.evict(first)
        second = until(lambda: holder() if holder() not in ("", first) else None, "nobody leads")
        cluster.note("Lease of the operator", f"moved after {time.monotonic() - evicted:.1f} s")
        assert second in cluster.pods("operator")
        hold = {
            "apiVersion": "tidemill.dev/v1alpha1", "kind": "Hold", "metadata": {"name": "kept"},
            "spec": {"collection": "flights", "frontier": "2013-01-01T00:00:00Z"},
        }  # fmt: skip
        cluster.kubectl("apply", "-f", "-", text=json.dumps(hold))
        until(lambda: cluster.reasons()["Hold/kept"][0] == "True", "the second does not work")
    finally:
        said("kubectl", "uncordon", "node")
    cluster.settled()


def test_helm_upgrade_and_rollback_while_the_stream_goes_on(
    cluster: Cluster, flights: Flights
) -> None:
    """Other values for every pod, and back."""
    scenario = flights.scenario
    cluster.helm("upgrade", RELEASE, str(CHART), *FILES, "--set", "services.leaseSeconds=10")
    flights.send(scenario.kill_at + (scenario.instants[2] - scenario.kill_at) // 2)
    cluster.settled()
    assert "10" in cluster.kubectl("get", "deployment", "tidemill-compute", "-o", "yaml")
    flights.complete()
    assert flights.differences(scenario.instants[1]) == []
    cluster.helm("rollback", RELEASE, "2")
    cluster.settled()
    assert flights.differences(scenario.instants[1]) == []


def test_answers_at_three_instants_and_alarms_exactly_once(
    cluster: Cluster, flights: Flights
) -> None:
    """Everything sent: views and dead letters equal the oracle's; each alarm is told once."""
    flights.send_the_rest()
    complete = flights.complete()
    for at in flights.scenario.instants:
        assert flights.differences(at) == []
    assert flights.dead_letters_differ() == []
    upper = complete["knock-ons"]
    wanted = len(flights.oracle.alarms(upper))
    told: dict[str, Callable[[], list[bytes]]] = {
        "alarms-in-a-file": lambda: alarms_in_file(cluster),
        "alarms-in-a-topic": flights.alarms_in_topic,
    }
    for action, lines in told.items():
        until(partial(_as_many, lines, wanted), f"{action} has not told {wanted} alarms")
        assert flights.alarms_differ(upper, lines()) == ""
        cluster.note(action, f"{wanted} alarms, each once")
    cluster.note("records sent", f"{flights.sent:,}")


def _equal(flights: Flights, at: int) -> bool:
    return flights.differences(at) == []


def _as_many(lines: Callable[[], list[bytes]], wanted: int) -> bool:
    return len(lines()) >= wanted


def alarms_in_file(cluster: Cluster) -> list[bytes]:
    text = cluster.kubectl("exec", cluster.pods("query")[0], "--", "cat", "alarms/alarms.jsonl")
    return [line.encode() for line in text.splitlines()]


def test_uninstalling_keeps_definitions_objects_and_data(
    cluster: Cluster, flights: Flights
) -> None:
    """Everything is there again after an installation, with frontiers no earlier."""
    before = {each.id: each.upper for each in flights.client.collections()}
    objects = sorted(cluster.reasons())
    cluster.helm("uninstall", RELEASE, "--wait")
    until(lambda: not cluster.objects("pods"), "pods of the release are left")
    assert sorted(cluster.reasons()) == objects
    assert len(said("kubectl", "get", "crd", "-o", "name").split()) == len(KINDS)
    cluster.helm("install", RELEASE, str(CHART), *FILES)
    cluster.settled()
    for at in flights.scenario.instants:
        until(partial(_equal, flights, at), "other answers after a new installation")
    after = {each.id: each.upper for each in flights.client.collections()}
    assert set(before) <= set(after)
    upper = flights.complete()["knock-ons"]
    assert flights.alarms_differ(upper, flights.alarms_in_topic()) == ""
    assert flights.alarms_differ(upper, alarms_in_file(cluster)) == ""


def test_sizes_of_images(cluster: Cluster) -> None:
    """Bytes that a node fetches; layers that images share are stored once."""
    archive = said(str(ROOT / "infra/kubernetes/images.sh"), "archive").strip()
    lines = said(str(ROOT / "infra/kubernetes/image-sizes.py"), archive).splitlines()
    sizes = {name: float(size.split()[0]) for name, _, size in (s.partition(": ") for s in lines)}
    together = sizes.pop("together")
    assert set(sizes) == {
        "localhost/tidemill:0.1.0",
        *(f"localhost/tidemill-{service}:0.1.0" for service in (*ROLES, "operator")),
    }
    assert together < sizes["localhost/tidemill:0.1.0"] + 100
    assert max(size for name, size in sizes.items() if "/tidemill-" in name) <= 250
    for line in lines:
        cluster.note("image", line)


def test_every_service_ran_from_its_own_image(cluster: Cluster) -> None:
    ran = {
        pod["metadata"]["labels"]["app.kubernetes.io/component"]: {
            each["image"] for each in pod["spec"]["containers"]
        }
        for pod in cluster.objects("pods", "-l", "app.kubernetes.io/name=tidemill")
    }
    assert ran == {each: {f"localhost/tidemill-{each}:0.1.0"} for each in (*ROLES, "operator")}
