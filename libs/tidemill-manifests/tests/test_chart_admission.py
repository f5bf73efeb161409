"""The chart's admission policies about launchers and drivers, judged by their own expressions."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import cel
import msgspec
import pytest

from tidemill.shard.stores import BlobPlace
from tidemill.spark.launcher import Job, JobKind
from tidemill.spark.pod_settings import PodSettings
from tidemill.spark.pod_specs import Attempt, driver_pod, executor_template
from tidemill.spark.spark_application import spark_application
from tidemill.testkit.charts import of, rendered

VALUES: dict[str, Any] = {
    "insecure": True,
    "stores": {"blob": "s3://bucket/prefix", "blobSecret": "bucket"},
    "networkPolicy": {"enabled": False},
    "spark": {"enabled": True, "settings": {"secrets": {"/etc/kafka": "kafka-reader"}}},
}
APPLICATIONS = {**VALUES, "spark": {**VALUES["spark"], "launcher": "sparkapplication"}}
SETTINGS = PodSettings(
    namespace="air-spark", service_account="one-tidemill-spark", blob_secret="bucket",
    secrets={"/etc/kafka": "kafka-reader"}, image_pull_secrets=("registry",),
)  # fmt: skip
LAUNCHER = "system:serviceaccount:air:one-tidemill-whole"
DRIVER = "system:serviceaccount:air-spark:one-tidemill-spark"
PLACE = BlobPlace("s3://bucket/prefix", "key", "secret")
ATTEMPT = Attempt(Job(JobKind.BACKFILL, "flights", "jobs.backfill", b"spec"), 1)
TOKEN_VOLUME = {
    "name": "kube-api-access-x",
    "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}, {"downwardAPI": {}}]},
}


def driver() -> dict[str, Any]:
    """The pod of a driver as admission sees it: the API server has mounted its token."""
    pod = driver_pod(ATTEMPT, "air-spark", SETTINGS, PLACE, None)
    pod["spec"]["volumes"].append(TOKEN_VOLUME)
    return pod


def executor() -> dict[str, Any]:
    """The pod of an executor as Spark completes the template."""
    pod = deepcopy(executor_template(ATTEMPT, SETTINGS))
    pod["metadata"]["labels"] |= {"spark-app-selector": "spark-1", "spark-role": "executor"}
    pod["spec"]["containers"][0] |= {
        "image": SETTINGS.image, "args": ["executor"],
        "env": [{"name": "SPARK_DRIVER_URL", "value": "spark://x"},
                {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
    }  # fmt: skip
    pod["spec"]["volumes"].append({"name": "spark-conf", "configMap": {"name": "spark-exec-1"}})
    pod["spec"]["serviceAccountName"] = "default"
    return pod


def refusals(
    policy: str, user: str, new: dict[str, Any] | None, values: dict[str, Any] = VALUES, **request: Any
) -> list[str] | None:  # fmt: skip
    """Messages of the rules that refuse; None if the policy does not look.

    An error refuses, as on a server.
    """
    spec = of("ValidatingAdmissionPolicy", rendered(values))[f"air-one-tidemill-jobs-{policy}"]["spec"]  # fmt: skip
    known: dict[str, Any] = {
        "object": new, "oldObject": request.pop("old", None),
        "request": {"userInfo": {"username": user}, **request}, "variables": {},
    }  # fmt: skip
    for condition in spec["matchConditions"]:
        if cel.compile(condition["expression"]).execute(known) is not True:
            return None
    for each in spec.get("variables", ()):
        known["variables"][each["name"]] = cel.compile(each["expression"]).execute(known)
    return [each["message"] for each in spec["validations"] if not _true(each["expression"], known)]


def _true(expression: str, known: dict[str, Any]) -> bool:
    try:
        return cel.compile(expression).execute(known) is True
    except (RuntimeError, TypeError, ValueError):
        return False


def test_k2_what_launchers_and_drivers_make_is_let_through() -> None:
    assert refusals("made", LAUNCHER, driver()) == []
    assert refusals("made", DRIVER, executor()) == []
    by_operator = executor()
    by_operator["spec"]["serviceAccountName"] = "one-tidemill-spark"  # as the Spark operator has it
    assert refusals("made", DRIVER, by_operator) == []
    bare = msgspec.structs.replace(SETTINGS, blob_secret="", secrets={})
    assert refusals("made", LAUNCHER, driver_pod(ATTEMPT, "air-spark", bare, PLACE, None)) == []


def volume(**what: Any) -> Callable[[dict[str, Any]], object]:
    return lambda pod: pod["spec"]["volumes"].append({"name": "more", **what})


def variable(**source: Any) -> Callable[[dict[str, Any]], object]:
    return lambda pod: (
        pod["spec"]["containers"][0]
        .setdefault("env", [])
        .append({"name": "X", "valueFrom": source})
    )


ATTACKS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "an image": (lambda p: p["spec"]["containers"][0].update(image="evil:1"), "runs from the image"),
    "one more container": (
        lambda p: p["spec"]["containers"].append({**p["spec"]["containers"][0], "image": "evil:1"}),
        "runs from the image",
    ),
    "a container before": (
        lambda p: p["spec"].update(initContainers=[{"name": "i", "image": "evil:1"}]),
        "runs from the image",
    ),
    "an account": (lambda p: p["spec"].update(serviceAccountName="admin"), "account"),
    "a foreign Secret": (volume(secret={"secretName": "users"}), "no Secret"),
    "a foreign Secret in a projection": (
        volume(projected={"sources": [{"secret": {"name": "users"}}]}), "no Secret",
    ),
    "a claim": (volume(persistentVolumeClaim={"claimName": "state"}), "no claim"),
    "a path of the node": (volume(hostPath={"path": "/"}), "no path"),
    "a driver of volumes": (volume(csi={"driver": "x"}), "no path"),
    "a foreign Secret in a variable": (variable(secretKeyRef={"name": "users", "key": "k"}), "variable"),
    "a foreign Secret in all variables": (
        lambda p: p["spec"]["containers"][0].update(envFrom=[{"secretRef": {"name": "users"}}]),
        "variable",
    ),
    "the network of the node": (lambda p: p["spec"].update(hostNetwork=True), "apart from its node"),
    "the processes of the node": (lambda p: p["spec"].update(hostPID=True), "apart from its node"),
    "more privilege": (
        lambda p: p["spec"]["containers"][0].update(securityContext={"privileged": True}),
        "apart from its node",
    ),
    "no label": (lambda p: p["metadata"].pop("labels"), "label"),
    "the label of another": (
        lambda p: p["metadata"]["labels"].update({"app.kubernetes.io/name": "tidemill"}), "label",
    ),
}  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("who", ["launcher", "driver"])
def test_k2_nothing_else_is_let_through(attack: str, who: str) -> None:
    change, says = ATTACKS[attack]
    pod, user = (driver(), LAUNCHER) if who == "launcher" else (executor(), DRIVER)
    change(pod)
    found = refusals("made", user, pod)
    assert any(says in each for each in found or ()), found


def test_k2_an_executor_has_no_token_and_nobody_else_the_account_of_drivers() -> None:
    pod = executor()
    pod["spec"]["automountServiceAccountToken"] = True
    assert refusals("made", DRIVER, pod) == ["a driver has the account one-tidemill-spark, and an executor no token of any"]  # fmt: skip
    asked = executor()
    asked["spec"]["volumes"].append(TOKEN_VOLUME)
    assert refusals("made", DRIVER, asked) == [
        "a pod of a job mounts no claim, no path of a node and no Secret but those of jobs"
    ]
    # Somebody else's pod is none of the policy's business, unless it takes the account of a driver.
    other = {"metadata": {}, "spec": {"containers": [{"image": "other:1"}]}}
    assert refusals("made", "jane", other) is None
    other["spec"]["serviceAccountName"] = "one-tidemill-spark"  # type: ignore[index]
    assert refusals("made", "jane", other)


@pytest.mark.parametrize("resource", ["pods", "configmaps"])
def test_k2_what_is_not_of_a_job_is_not_deleted(resource: str) -> None:
    labels = {"pods": {"app.kubernetes.io/name": "tidemill-spark"},
              "configmaps": {"spark-app-selector": "spark-1"}}[resource]  # fmt: skip
    what = {"resource": {"resource": resource}}
    for user in (LAUNCHER, DRIVER):
        own, foreign = {"metadata": {"labels": labels}}, {"metadata": {"labels": {"a": "b"}}}
        assert refusals("gone", user, None, old=own, **what) == []
        for each in (foreign, {"metadata": {}}):
            assert refusals("gone", user, None, old=each, **what) == [
                "only pods and settings of jobs are deleted"
            ]
    assert refusals("gone", "jane", None, old={"metadata": {}}, **what) is None


APPLICATION_ATTACKS: dict[str, Callable[[dict[str, Any]], object]] = {
    "an image": lambda s: s.update(image="evil:1"),
    "an image of the driver": lambda s: s["driver"].update(image="evil:1"),
    "an account": lambda s: s["driver"].update(serviceAccount="admin"),
    "an account of executors": lambda s: s["executor"].update(serviceAccount="admin"),
    "volumes": lambda s: s.update(volumes=[{"name": "x", "hostPath": {"path": "/"}}]),
    "a Secret": lambda s: s["driver"].update(secrets=[{"name": "users", "path": "/x"}]),
    "a Secret in the template": lambda s: s["driver"]["template"]["spec"]["volumes"].append(
        {"name": "x", "secret": {"secretName": "users"}}
    ),
    "a setting": lambda s: s["sparkConf"].update({"spark.kubernetes.driver.secrets.users": "/x"}),
    "a container beside": lambda s: s["driver"].update(sidecars=[{"image": "evil:1"}]),
    "labels": lambda s: s["executor"].pop("labels"),
}


def test_k2_what_a_spark_operator_is_asked_for_is_judged_alike() -> None:
    application = spark_application(ATTEMPT, "air-spark", SETTINGS, PLACE, None)
    assert refusals("applications", LAUNCHER, application, APPLICATIONS) == []
    assert refusals("applications", "jane", application, APPLICATIONS) is None
    for name, change in APPLICATION_ATTACKS.items():
        wrong = deepcopy(application)
        change(wrong["spec"])
        assert refusals("applications", LAUNCHER, wrong, APPLICATIONS), name


def test_k2_policies_are_bound_and_deny() -> None:
    objects = rendered(APPLICATIONS)
    policies = of("ValidatingAdmissionPolicy", objects)
    bindings = of("ValidatingAdmissionPolicyBinding", objects)
    assert policies.keys() == bindings.keys()
    assert len(policies) == 3
    for name, binding in bindings.items():
        assert binding["spec"] == {"policyName": name, "validationActions": ["Deny"]}
        assert policies[name]["spec"]["failurePolicy"] == "Fail"
    off = {**VALUES, "spark": {**VALUES["spark"], "admission": False}}
    assert of("ValidatingAdmissionPolicy", rendered(off)) == {}
