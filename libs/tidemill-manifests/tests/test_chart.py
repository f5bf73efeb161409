"""The chart renders to objects that an API server takes, for the values that people set."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import helm_python as helm
import kubernetes_validate
import msgspec
import pytest
from ruamel.yaml import YAML

from tidemill.host.process import checked
from tidemill.manifests.chart_values import documented, leaves
from tidemill.runtime import settings
from tidemill.testkit.charts import CHART, of, pods, rendered
from tidemill_operator.settings import OperatorSettings
from tidemill_server.settings import ServerSettings

OLDEST = "1.30"
"""The version that Chart.yaml asks for."""

HERE = [{"to": [{"podSelector": {}}], "ports": [{"protocol": "TCP", "port": 9999}]}]
OPEN: dict[str, Any] = {"insecure": True}
"""Values without which nothing is made, if there are no users."""
REACHED: dict[str, Any] = {
    "from": [{"namespaceSelector": {}}], "scrapers": [{"podSelector": {}}],
    "to": dict.fromkeys(("consensus", "blob", "kafka", "sources", "sinks"), HERE),
}  # fmt: skip

EVERYTHING: dict[str, Any] = {
    "imagePullSecrets": [{"name": "registry"}],
    "stores": {
        "consensus": "redis://redis:6379/0",
        "blob": "s3://b/p",
        "blobSecret": "bucket",
        "consensusSecret": "redis",
    },
    "kafka": "kafka:9092",
    "tls": {"secret": "front", "serverName": "tidemill.example"},
    "httpTls": {"secret": "pages", "serverName": "pages.example"},
    "tokens": {"secret": "users", "operatorSecret": "operator-token", "testSecret": "reader"},
    "services": {
        "leaseSeconds": 4,
        "tls": {"secret": "services", "serverName": "tidemill", "names": ["tidemill-*"]},
    },
    "operator": {
        "replicas": 2,
        "namespaces": ["air", "rail"],
        "users": {"rail": "rail-token"},
        "settings": {"resync_s": 5},
    },
    "settings": {"retry_s_max": 10.0},
    "podAnnotations": {"a": "b"},
    "podLabels": {"team": "delays"},
    "extraEnv": [{"name": "TZ", "value": "UTC"}],
    "extraVolumes": [{"name": "files", "configMap": {"name": "files"}}],
    "extraVolumeMounts": [{"name": "files", "mountPath": "/srv/tidemill/files"}],
    "places": {
        "files": {"read": ["/srv/tidemill/files"]},
        "egress": ["kafka", "*.example.org"],
        "topics": {"read": ["flights"], "write": ["alarms"]},
        "secrets": {"broker": {"secret": "kafka-reader", "key": "password", "hosts": ["kafka"]}},
    },
    "nodeSelector": {"disk": "fast"},
    "tolerations": [{"key": "x", "operator": "Exists"}],
    "affinity": {"podAntiAffinity": {}},
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
    ],
    "priorityClassName": "high",
    "podDisruptionBudget": {"enabled": True},
    "networkPolicy": REACHED,
    "serviceAccount": {"annotations": {"role": "arn"}},
    "metrics": {
        "skipCapabilityCheck": True,
        "serviceMonitor": {"enabled": True, "labels": {"release": "p"}},
        "prometheusRule": {"enabled": True},
        "dashboards": {"enabled": True, "namespace": "monitoring"},
    },
}
SPLIT = {
    **EVERYTHING,
    "roles": {
        "ingest": {"replicas": 3},
        "query": {"resources": {"requests": {"cpu": "1"}}},
        "rest": {"role": "remap,reclock,compute,compaction"},
    },
}
VARIANTS: dict[str, dict[str, Any]] = {
    "defaults": OPEN,
    "everything": EVERYTHING,
    "split": SPLIT,
    "all namespaces": {**OPEN, "operator": {"allNamespaces": True}},
    "no operator": {**OPEN, "operator": {"enabled": False}, "rbac": {"aggregate": False}},
    "jobs in pods": {
        **OPEN,
        "stores": {"blob": "s3://b/p", "blobSecret": "bucket"},
        "imagePullSecrets": [{"name": "registry"}],
        "spark": {"enabled": True, "executors": 3, "executor": {"memoryMiB": 2048}},
        "networkPolicy": REACHED,
    },
    "jobs of the Spark operator": {
        **OPEN,
        "stores": {"blob": "s3://b/p"},
        "spark": {"enabled": True, "launcher": "sparkapplication"},
        "networkPolicy": REACHED,
    },
    "jobs of roles": {
        **SPLIT,
        "spark": {
            "enabled": True,
            "namespace": "jobs",
            "image": "other:1",
            "blobSecret": "theirs",
            "serviceAccountAnnotations": {"role": "arn"},
            "settings": {"retries": {"driver": 4}, "node_selector": {"disk": "fast"}},
        },
    },
    "no volume": {**OPEN, "persistence": {"enabled": False}},
    "an existing claim": {**OPEN, "persistence": {"existingClaim": "mine"}},
}


def test_lint_finds_nothing_but_a_missing_icon() -> None:
    found = helm.lint(str(CHART))
    assert found["errors"] == []
    assert [each["error"] for each in found["messages"]] == ["icon is recommended"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_an_api_server_takes_every_object(variant: str) -> None:
    objects = rendered(VARIANTS[variant])
    assert len(objects) > 8
    for each in objects:
        if each["apiVersion"].startswith("monitoring.coreos.com"):
            continue
        kubernetes_validate.validate(each, OLDEST, strict=True)
    names = [(e["kind"], e["metadata"].get("namespace"), e["metadata"]["name"]) for e in objects]
    assert len(names) == len(set(names))


def test_an_object_with_an_unknown_field_would_be_found() -> None:
    service = next(iter(of("Service", rendered(OPEN)).values()))
    wrong = {**service, "spec": {**service["spec"], "sessionAfinity": "None"}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, OLDEST, strict=True)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_pod_fits_the_restricted_standard(variant: str) -> None:
    found = pods(rendered(VARIANTS[variant]))
    assert found
    for _, spec in found:
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["enableServiceLinks"] is False
        for volume in spec["volumes"]:
            assert (
                len(
                    volume.keys()
                    & {"configMap", "emptyDir", "persistentVolumeClaim", "projected", "secret"}
                )
                == 1
            )
        (container,) = spec["containers"]
        inside = container["securityContext"]
        assert inside["allowPrivilegeEscalation"] is False
        assert inside["readOnlyRootFilesystem"] is True
        assert inside["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["requests"]
        names = {volume["name"] for volume in spec["volumes"]} | {"state"}
        assert {mount["name"] for mount in container["volumeMounts"]} <= names


@pytest.mark.parametrize("variant", VARIANTS)
def test_selectors_find_the_pods_that_are_meant(variant: str) -> None:
    objects = rendered(VARIANTS[variant])
    labels = [metadata["labels"] for metadata, _ in pods(objects)]
    for each in objects:
        selector = each.get("spec", {}).get("selector")
        if each["kind"] in ("StatefulSet", "Deployment", "PodDisruptionBudget"):
            selector = selector["matchLabels"]
        elif each["kind"] != "Service":
            continue
        matching = [one for one in labels if selector.items() <= one.items()]
        assert len(matching) == 1 or each["metadata"]["name"].endswith("-pods"), each["metadata"]


def test_the_processes_take_the_settings_that_the_pods_give_them(tmp_path: Path) -> None:
    objects = rendered(EVERYTHING)
    split = next(
        spec["containers"][0]
        for metadata, spec in pods(rendered(SPLIT))
        if metadata["labels"]["app.kubernetes.io/component"] == "rest"
    )
    (config,) = [o for o in of("ConfigMap", objects).values() if "settings.yaml" in o["data"]]
    readers: dict[str, tuple[type[Any], str]] = {
        "settings.yaml": (ServerSettings, "TIDEMILL_UP_"),
        "operator.yaml": (OperatorSettings, "TIDEMILL_OPERATOR_"),
    }
    for name, (struct, prefix) in readers.items():
        (tmp_path / name).write_text(config["data"][name])
        (container,) = [
            spec["containers"][0]
            for _, spec in pods(objects)
            if f"/etc/tidemill/{name}" in spec["containers"][0].get("args", ())
        ]
        given = {each["name"]: each.get("value", "secret") for each in container["env"]}
        loaded = settings.load(struct, tmp_path / name, prefix, given)
        if isinstance(loaded, OperatorSettings):
            assert loaded.namespaces == ("air", "rail")
            assert loaded.users == {"rail": "/etc/tidemill-secrets/users/rail/token"}
            assert loaded.tidemill == "one-tidemill:7474"
            assert loaded.lease == "one-tidemill-operator"
            assert loaded.resync_s == 5
            assert loaded.token_file == "/etc/tidemill-secrets/token/token"
        else:
            given = {each["name"]: each.get("value", "secret") for each in split["env"]}
            alone = settings.load(struct, tmp_path / name, prefix, given)
            assert split["args"][:3] == ["up", "--role", "remap,reclock,compute,compaction"]
            assert isinstance(alone, ServerSettings)
            assert alone.services.lease_s == 4
            assert alone.services.advertise == "$(POD_IP):7473"
            alone = msgspec.structs.replace(
                alone, store=loaded.store.__class__(), role=(split["args"][2],)
            )
            assert checked(alone) == ("remap", "reclock", "compute", "compaction")
            assert (alone.token_file, alone.tls.files) == ("", None)
            assert alone.services.names == ("tidemill-*",)
            assert loaded.log == "kafka:kafka:9092"
            assert loaded.tls.files is not None
            assert loaded.http_tls.certificate == "/etc/tidemill-secrets/http/tls.crt"
            assert loaded.http_tls.key == "/etc/tidemill-secrets/http/tls.key"
            assert loaded.http_tls.authority == ""  # kubelet has no certificate to probe with
            assert loaded.directory == "/var/lib/tidemill"
            assert loaded.places.files.read == ("/srv/tidemill/files",)
            assert loaded.places.egress == ("kafka", "*.example.org")
            assert loaded.places.topics.read == ("flights",)
            assert loaded.places.topics.write == ("alarms",)
            file = "/etc/tidemill-secrets/places-broker/password"
            assert loaded.places.secrets["broker"].file == file
            assert loaded.places.secrets["broker"].hosts == ("kafka",)
            assert {
                "name": "places-broker-secret",
                "mountPath": file.rpartition("/")[0],
                "readOnly": True,
            } in split["volumeMounts"]
            assert loaded.store.consensus == "redis://redis:6379/0"
            assert loaded.retry_s_max == 10


def test_the_operator_may_do_what_it_does_and_no_more() -> None:
    objects = rendered(OPEN)
    assert not [r for r in of("ClusterRole", objects) if not r.endswith(("-view", "-edit"))]
    rules = [rule for role in of("Role", objects).values() for rule in role["rules"]]
    allowed = {
        (resource, verb)
        for rule in rules
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    kinds = ("sources", "tables", "views", "actions", "arrangements", "holds")
    assert allowed == {
        *((kind, verb) for kind in kinds for verb in ("get", "list", "watch", "patch")),
        *((f"{kind}/status", "patch") for kind in kinds),
        *(("events", verb) for verb in ("create", "get", "update")),
        *(("leases", verb) for verb in ("create", "get", "update")),
    }
    tokens = [
        spec["serviceAccountName"]
        for _, spec in pods(objects)
        if spec.get("automountServiceAccountToken") is not False
    ]
    assert tokens == ["one-tidemill-operator"]


def process_settings(objects: list[dict[str, Any]], folder: Path, component: str) -> Any:
    """The settings of the pods of a component, as the process reads them."""
    config = of("ConfigMap", objects)["one-tidemill"]
    (folder / "settings.yaml").write_text(config["data"]["settings.yaml"])
    (container,) = [
        spec["containers"][0] for metadata, spec in pods(objects)
        if metadata["labels"]["app.kubernetes.io/component"] == component
    ]  # fmt: skip
    given = {each["name"]: each.get("value", "secret") for each in container["env"]}
    return settings.load(ServerSettings, folder / "settings.yaml", "TIDEMILL_UP_", given)


def test_jobs_are_launched_as_the_values_say(tmp_path: Path) -> None:
    whole = process_settings(rendered(VARIANTS["jobs in pods"]), tmp_path, "whole").spark
    assert whole.launcher == "kubernetes"
    assert whole.pods.namespace == "air-spark"
    assert whole.pods.image == "localhost/tidemill:0.1.0"
    assert whole.pods.image_pull_secrets == ("registry",)
    assert (whole.pods.executors, whole.pods.executor_memory_mb) == (3, 2048)
    assert whole.pods.service_account == "one-tidemill-spark"
    assert (whole.pods.blob_secret, whole.pods.owner) == ("bucket", "")
    beside = {**VARIANTS["jobs in pods"], "spark": {"enabled": True, "namespace": "air"}}
    assert process_settings(rendered(beside), tmp_path, "whole").spark.pods.owner == "secret"
    split = rendered(VARIANTS["jobs of roles"])
    rest = process_settings(split, tmp_path, "rest").spark
    assert rest.launcher == "kubernetes"
    assert (rest.pods.namespace, rest.pods.image, rest.pods.owner) == ("jobs", "other:1", "")
    assert (rest.pods.blob_secret, rest.pods.retries.driver) == ("theirs", 4)
    assert rest.pods.node_selector == {"disk": "fast"}
    assert process_settings(split, tmp_path, "query").spark.launcher == "process"
    theirs = process_settings(rendered(VARIANTS["jobs of the Spark operator"]), tmp_path, "whole")
    assert theirs.spark.launcher == "sparkapplication"
    # Nothing of the kind is there unless it is asked for.
    assert process_settings(rendered(OPEN), tmp_path, "whole").spark.launcher == "process"


@pytest.mark.parametrize(("secret", "scheme"), [("", "HTTP"), ("pages", "HTTPS")])
def test_whoever_probes_or_scrapes_follows_the_scheme_of_http(secret: str, scheme: str) -> None:
    objects = rendered({**SPLIT, "httpTls": {"secret": secret, "serverName": "pages.example"}})
    for metadata, spec in pods(objects):
        component = metadata["labels"]["app.kubernetes.io/component"]
        wanted = "HTTP" if component == "operator" else scheme
        for name, probe in spec["containers"][0].items():
            if name.endswith("Probe"):
                assert probe["httpGet"].get("scheme", "HTTP") == wanted, (component, name)
        annotations = metadata["annotations"]
        if "prometheus.io/scrape" in annotations:
            assert annotations.get("prometheus.io/scheme", "http") == wanted.lower()
    (monitor,) = of("ServiceMonitor", objects).values()
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["scheme"] == scheme.lower()
    tls = {
        "ca": {"secret": {"name": "pages", "key": "ca.crt"}},
        "serverName": "pages.example",
    }
    assert endpoint.get("tlsConfig") == (tls if secret else None)


def images(values: dict[str, Any]) -> dict[str, str]:
    """The image of each component."""
    return {
        metadata["labels"]["app.kubernetes.io/component"]: spec["containers"][0]["image"]
        for metadata, spec in pods(rendered(values))
    }


def test_each_service_runs_from_its_image() -> None:
    shared = {"consensus": "redis://redis:6379/0", "blob": "s3://b/p"}
    roles: dict[str, Any] = {
        "ingest": {"image": "mine/ingest:2"}, "query": {}, "both": {"role": "remap,reclock"},
        "compute": {}, "compaction": {},
    }  # fmt: skip
    values = {
        **OPEN,
        "networkPolicy": REACHED,
        "stores": shared,
        "roles": roles,
        "spark": {"enabled": True},
        "image": {"tag": "7"},
    }
    whole, named = "localhost/tidemill:7", "localhost/tidemill-{}:7".format
    apart = {
        "ingest": "mine/ingest:2", "query": named("query"), "both": whole,
        "compute": named("compute"), "compaction": named("compaction"),
        "operator": named("operator"), "test": named("query"),
    }  # fmt: skip
    assert images(values) == apart
    # A role that runs jobs of Spark in its own pod needs the image with Spark.
    jobs = {"compute": whole, "compaction": whole}
    assert images({**values, "spark": {"enabled": False}}) == {**apart, **jobs}
    together = {**dict.fromkeys(apart, whole), "ingest": "mine/ingest:2"}
    assert images({**values, "image": {"tag": "7", "perService": False}}) == together
    assert images({**OPEN, "operator": {"image": "o:1"}}) == {
        "whole": "localhost/tidemill:0.1.0", "test": "localhost/tidemill:0.1.0", "operator": "o:1",
    }  # fmt: skip


def test_jobs_in_pods_need_a_bucket() -> None:
    with pytest.raises(helm.HelmError, match=re.escape("set stores.blob")):
        rendered({**OPEN, "spark": {"enabled": True}})


@pytest.mark.parametrize(
    ("variant", "namespace", "launching"),
    [
        ("jobs in pods", "air-spark", ["whole"]),
        ("jobs of roles", "jobs", ["rest"]),
        ("jobs of the Spark operator", "air-spark", ["whole"]),
    ],
)
def test_who_launches_jobs_may_make_drivers_and_drivers_may_make_executors(
    variant: str, namespace: str, launching: list[str]
) -> None:
    objects = rendered(VARIANTS[variant])
    roles = of("Role", objects)
    may = {
        name: {(r, v) for rule in roles[name]["rules"] for r in rule["resources"] for v in rule["verbs"]}
        for name in ("one-tidemill-launcher", "one-tidemill-spark")
    }  # fmt: skip
    theirs = variant == "jobs of the Spark operator"
    made = "sparkapplications" if theirs else "pods"
    assert may["one-tidemill-launcher"] == {
        *((made, verb) for verb in ("get", "list", "watch", "create", "delete")),
        *(("events", verb) for verb in ("create", "get", "update")),
        ("pods", "get"),
    }
    groups = {
        each for rule in roles["one-tidemill-launcher"]["rules"] for each in rule["apiGroups"]
    }
    assert groups == {"", "sparkoperator.k8s.io"} if theirs else {""}
    assert ("pods", "create") in may["one-tidemill-spark"]
    assert not {("secrets", "get"), ("events", "create")} & may["one-tidemill-spark"]
    bindings = of("RoleBinding", objects)
    for name, account, home in (
        ("one-tidemill-launcher", f"one-tidemill-{launching[0]}", "air"),
        ("one-tidemill-spark", "one-tidemill-spark", namespace),
    ):
        assert roles[name]["metadata"]["namespace"] == namespace
        assert bindings[name]["metadata"]["namespace"] == namespace
        assert bindings[name]["roleRef"]["name"] == name
        (subject,) = bindings[name]["subjects"]
        assert (subject["name"], subject["namespace"]) == (account, home)
    assert of("ServiceAccount", objects)["one-tidemill-spark"]["metadata"]["namespace"] == namespace
    with_token = [
        metadata["labels"]["app.kubernetes.io/component"] for metadata, spec in pods(objects)
        if spec.get("automountServiceAccountToken") is not False
    ]  # fmt: skip
    assert sorted(with_token) == sorted([*launching, "operator"])


def test_jobs_have_a_launcher_that_exists() -> None:
    with pytest.raises(helm.HelmError, match="launcher"):
        rendered(
            {**OPEN, "stores": {"blob": "s3://b/p"}, "spark": {"enabled": True, "launcher": "yarn"}}
        )


def test_roles_follow_the_namespaces() -> None:
    some = of("Role", rendered(EVERYTHING))
    both = [o for o in rendered(EVERYTHING) if o["kind"] == "Role" and "namespace" in o["metadata"]]
    assert some
    assert [o["metadata"]["namespace"] for o in both] == ["air", "rail"]
    assert not [o for o in both if o["metadata"]["name"] != "one-tidemill-operator"]
    everywhere = rendered(VARIANTS["all namespaces"])
    assert "air-one-tidemill-operator" in of("ClusterRole", everywhere)
    assert not [o for o in everywhere if o["kind"] == "Role" and "namespace" in o["metadata"]]


def test_roles_need_stores_that_pods_share() -> None:
    with pytest.raises(helm.HelmError, match=re.escape("set stores.consensus and stores.blob")):
        rendered({**OPEN, "roles": {"query": {}}})
    stores = {"consensus": "redis://r:6379/0", "blob": "s3://b"}
    with pytest.raises(helm.HelmError, match="no entry of roles has the role ingest"):
        rendered({**OPEN, "networkPolicy": REACHED, "roles": {"query": {}}, "stores": stores})
    split = rendered(SPLIT)
    assert of("StatefulSet", split) == {}
    assert set(of("Deployment", split)) == {
        "one-tidemill-ingest", "one-tidemill-query", "one-tidemill-rest", "one-tidemill-operator",
    }  # fmt: skip
    ingest = of("Deployment", split)["one-tidemill-ingest"]["spec"]
    assert ingest["replicas"] == 3
    assert ingest["template"]["spec"]["containers"][0]["args"][:3] == ["up", "--role", "ingest"]
    assert set(of("PodDisruptionBudget", split)) == {"one-tidemill-ingest", "one-tidemill-operator"}


def test_data_outlives_the_release() -> None:
    objects = rendered(OPEN)
    whole = of("StatefulSet", objects)["one-tidemill"]["spec"]
    assert whole["persistentVolumeClaimRetentionPolicy"]["whenDeleted"] == "Retain"
    definitions = of("CustomResourceDefinition", objects).values()
    assert len(definitions) == 6
    assert all(
        d["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"} for d in definitions
    )
    assert not of("CustomResourceDefinition", rendered({**OPEN, "crds": {"install": False}}))
    for each in of(
        "CustomResourceDefinition", rendered({**OPEN, "crds": {"keep": False}})
    ).values():
        assert not each["metadata"]["annotations"]


def test_the_rules_and_dashboards_are_those_that_are_tested() -> None:
    objects = rendered(EVERYTHING)
    (rule,) = of("PrometheusRule", objects).values()
    groups = YAML(typ="safe").load(CHART / "monitoring/rules.yaml")["groups"]
    text = json.dumps(groups).replace('"runbook": "', '"runbook_url": "docs/runbooks/')
    assert rule["spec"]["groups"] == json.loads(text)
    boards = {
        name: board["data"]
        for name, board in of("ConfigMap", objects).items()
        if name.endswith("-dashboard")
    }
    assert len(boards) == 6
    for data in boards.values():
        ((file, text),) = data.items()
        assert text == (CHART / "monitoring/dashboards" / file).read_text()
    assert not of(
        "PrometheusRule", rendered({**OPEN, "metrics": {"prometheusRule": {"enabled": True}}})
    )


@pytest.mark.parametrize(
    "wrong",
    [{"imagee": {}}, {"image": {"tagg": "1"}}, {"operator": {"replicas": -1}},
     {"stores": {"blob": "gs://b"}}, {"terminationGracePeriodSeconds": 5},
     {"persistence": {"size": "ten"}}, {"image": {"digests": {"query": "latest"}}},
     {"networkPolicy": {"egressPorts": [9092]}}, {"ephemeralStorage": {"limit": "much"}}, {"roles": {"Query": {}}}, {"roles": {"a": {"role": "b"}}}],
)  # fmt: skip
def test_values_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(helm.HelmError):
        rendered({**OPEN, **wrong})


def test_every_value_is_documented_and_in_the_schema() -> None:
    text = (CHART / "values.yaml").read_text()
    values = YAML(typ="safe").load(text)
    rows = [path for path, _ in documented(text)]
    assert leaves(values, frozenset(rows)) == rows
    schema = json.loads((CHART / "values.schema.json").read_text())

    def known(inner: dict[str, Any], given: dict[str, Any], path: str) -> None:
        for name, value in given.items():
            assert name in inner["properties"], f"{path}{name} is not in the schema"
            if isinstance(value, dict) and "properties" in inner["properties"][name]:
                known(inner["properties"][name], value, f"{path}{name}.")

    known(schema, values, "")
