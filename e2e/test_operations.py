"""The page on operating Tidemill, line by line on a node: what it shows is what happens.

Kafka, Redis and the S3 server are those of e2e/manifests; whatever another test has installed goes
first, in the order that the page gives.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from e2e.cluster import CHART, MANIFESTS, ROOT, SERVERS, SYSTEM, Cluster, CommandFailed, said, until
from tidemill.testkit.pages import shell_of

PAGE = ROOT / "docs/how-to/operations.md"


def nothing_is_left(cluster: Cluster) -> None:
    """Objects while the operator runs, then the release, the definitions, the namespace."""
    try:
        cluster.kubectl("get", "deployment", "tidemill-operator")
    except CommandFailed:
        pass
    else:
        cluster.kubectl("delete", "tidemill", "--all", "--timeout=240s")
        cluster.helm("uninstall", "tidemill", "--wait")
    said("kubectl", "delete", "crd", "-l", "app.kubernetes.io/part-of=tidemill")
    said("kubectl", "delete", "namespace", SYSTEM, "--ignore-not-found", "--timeout=240s")
    said("kubectl", "apply", "-f", str(MANIFESTS / "namespaces.yaml"))
    said("kubectl", "apply", "-f", str(MANIFESTS / "servers"))
    cluster.settled(SERVERS)
    said("kubectl", "delete", "namespace", SYSTEM, "--timeout=240s")


def test_the_page_on_operations_is_true(cluster: Cluster, tmp_path: Path) -> None:
    nothing_is_left(cluster)
    blocks = shell_of(PAGE.read_text())
    assert list(blocks) == ["Install", "Secure", "Upgrade", "Back up and restore", "Recover"]
    (tmp_path / "charts").symlink_to(CHART.parent)
    marked = "".join(f"echo '=== {heading}'\n{text}" for heading, text in blocks.items())
    script = f"set -euxo pipefail\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n{marked}echo '=== End'\n"
    path = f"{ROOT / '.venv/bin'}:{os.environ['PATH']}"
    output = ROOT / ".state/e2e-operations.txt"
    with output.open("w") as told:
        done = subprocess.run(
            ["bash", "-c", script], cwd=tmp_path, env={**os.environ, "PATH": path},
            stdout=told, stderr=told, check=False, timeout=1700,
        )  # fmt: skip
    printed = output.read_text()
    assert done.returncode == 0, printed[-4000:]
    said_by = dict(
        zip(*[iter(re.split(r"^=== (.+)$", printed, flags=re.MULTILINE)[1:])] * 2, strict=True)
    )
    assert len(said_by) == len(blocks) + 1
    for heading in ("Install", "Secure", "Upgrade"):
        assert re.search(r"^\W*1545\W+42", said_by[heading], re.MULTILINE), heading
    assert "\nrefused: ann only reads" in said_by["Secure"]
    assert "\nrefused: nobody is asked" in said_by["Secure"]
    assert re.search(r"^metrics over TLS: [1-9]\d+$", said_by["Secure"], re.MULTILINE)
    restored = said_by["Back up and restore"]
    assert "nothing wrong" in restored
    assert re.search(r"^\W*1545\W+42", restored, re.MULTILINE)
    assert not re.search(r"^\W*7\W+99", restored, re.MULTILINE)
    assert re.search(r"^\W*(11\W+)?33\W*$", said_by["Recover"], re.MULTILINE)
    at_work = {("True", "Running"), ("True", "NoRecords")}
    until(lambda: set(cluster.reasons().values()) <= at_work, "not all is ready")
