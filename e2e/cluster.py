"""Calls of the tests on a node: kubectl, helm, waiting, and the logs after a failure."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tidemill.errors import TidemillError

ROOT = Path(__file__).resolve().parents[1]
MANIFESTS = ROOT / "e2e/manifests"
CHART = ROOT / "charts/tidemill"
SYSTEM, SERVERS = "tidemill", "servers"
"""Namespaces: Tidemill's own, and that of Kafka, Redis, S3 and Prometheus."""
RELEASE = "tidemill"
WAIT_S = 180.0
WAITS: list[str] = []
"""A sentence for each wait that is under way, as its failure would say it."""

T = TypeVar("T")


class CommandFailed(Exception):
    """A command ended with an error; its text is what it said."""


def said(*command: str, text: str | None = None, limit_s: float = 300.0) -> str:
    """The output of a command. Raises: CommandFailed with both of its outputs."""
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, timeout=limit_s, check=False
    )
    if done.returncode:
        raise CommandFailed(f"{' '.join(command)}: {done.stderr.strip()} {done.stdout.strip()}")
    return done.stdout


def until(ask: Callable[[], T | None], what: str, limit_s: float = WAIT_S) -> T:
    """The first answer of `ask` that is not None. Fails with `what` and the last refusal."""
    deadline = time.monotonic() + limit_s
    refusal: Exception | None = None
    WAITS.append(what)
    try:
        while time.monotonic() < deadline:
            try:
                found = ask()
            except (TidemillError, CommandFailed) as error:
                found, refusal = None, error
            if found:
                return found
            time.sleep(0.25)
    finally:
        WAITS.pop()
    raise AssertionError(f"{what} (after {limit_s:.0f} s; last refusal: {refusal})")


@dataclass(slots=True)
class Cluster:
    """The node that this process runs on, by way of kubectl and helm. `facts` are printed at the
    end.
    """

    facts: list[tuple[str, str]] = field(default_factory=list)

    def kubectl(self, *arguments: str, namespace: str = SYSTEM, text: str | None = None) -> str:
        """The output of `kubectl` in a namespace."""
        return said("kubectl", "-n", namespace, *arguments, text=text)

    def helm(self, *arguments: str) -> str:
        """The output of `helm` in the namespace of the system."""
        return said("helm", "-n", SYSTEM, *arguments, limit_s=600.0)

    def objects(self, kind: str, *selector: str, namespace: str = SYSTEM) -> list[dict[str, Any]]:
        """Objects of a kind as the API server has them."""
        found = json.loads(self.kubectl("get", kind, *selector, "-o", "json", namespace=namespace))
        return list(found["items"])

    def pods(self, component: str) -> list[str]:
        """Names of the pods of a component that are not on their way out."""
        label = f"app.kubernetes.io/component={component}"
        return [
            each["metadata"]["name"]
            for each in self.objects("pods", "-l", label)
            if "deletionTimestamp" not in each["metadata"]
        ]

    def settled(self, namespace: str = SYSTEM, limit_s: float = 300.0) -> None:
        """Return once every Deployment of a namespace has all its pods, and no older ones."""
        for each in self.objects("deployments", namespace=namespace):
            self.kubectl(
                "rollout", "status", f"deployment/{each['metadata']['name']}",
                f"--timeout={limit_s:.0f}s", namespace=namespace,
            )  # fmt: skip

        def alone() -> bool:
            pods = self.objects("pods", namespace=namespace)
            return not [each for each in pods if "deletionTimestamp" in each["metadata"]]

        until(alone, f"pods that are replaced stay in {namespace}")

    def table(self, kind: str, *options: str) -> list[dict[str, str]]:
        """The table of `kubectl get`, cells by their headings."""
        heading, *lines = self.kubectl("get", kind, *options).splitlines()
        starts = [found.start() for found in re.finditer(r"\S+", heading)]
        ends = [*starts[1:], None]
        return [
            {
                heading[begin:end].strip(): line[begin:end].strip()
                for begin, end in zip(starts, ends, strict=True)
            }
            for line in lines
        ]

    def reasons(self) -> dict[str, tuple[str, str]]:
        """(status, reason) of the condition Ready of every object of Tidemill."""
        found = {}
        for each in self.objects("tidemill"):
            ready = [
                c for c in each.get("status", {}).get("conditions", ()) if c["type"] == "Ready"
            ]
            name = f"{each['kind']}/{each['metadata']['name']}"
            found[name] = (ready[0]["status"], ready[0]["reason"]) if ready else ("", "")
        return found

    def memory_mib(self) -> dict[str, int]:
        """The working set of each pod, by namespace/name."""
        text = said("kubectl", "get", "--raw", "/api/v1/nodes/node/proxy/stats/summary")
        return {
            f"{pod['podRef']['namespace']}/{pod['podRef']['name']}": pod["memory"][
                "workingSetBytes"
            ]
            >> 20
            for pod in json.loads(text)["pods"]
            if "workingSetBytes" in pod.get("memory", {})
        }

    def evict(self, pod: str) -> None:
        """Ask the API server to evict a pod, as a drain of its node does."""
        path = f"/api/v1/namespaces/{SYSTEM}/pods/{pod}/eviction"
        body = {
            "apiVersion": "policy/v1", "kind": "Eviction",
            "metadata": {"name": pod, "namespace": SYSTEM},
        }  # fmt: skip
        said("kubectl", "create", "--raw", path, "-f", "-", text=json.dumps(body))

    def note(self, what: str, value: str) -> None:
        """Print a fact at the end."""
        self.facts.append((what, value))

    def keep_logs(self, folder: Path, node_logs: Path) -> None:
        """Everything that helps to see why something failed, in one folder."""
        folder.mkdir(parents=True, exist_ok=True)
        commands: dict[str, Sequence[str]] = {
            "pods.txt": ("get", "pods", "-A", "-o", "wide"),
            "describe.txt": ("describe", "pods", "-A"),
            "events.txt": ("get", "events", "-A", "--sort-by=.lastTimestamp"),
            "tidemill.yaml": ("get", "tidemill", "-A", "-o", "yaml"),
        }
        for name, command in commands.items():
            done = subprocess.run(
                ["kubectl", *command], capture_output=True, text=True, check=False, timeout=60
            )
            (folder / name).write_text(done.stdout + done.stderr)
        said("cp", "-r", str(node_logs), str(folder / "node"))
