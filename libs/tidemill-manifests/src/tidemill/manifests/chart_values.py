"""The page of a chart's values: one row for each, with the comment that stands above it."""

from __future__ import annotations

import json
import re
from typing import Any

from ruamel.yaml import YAML

_KEY = re.compile(r"^(?P<indent> *)(?P<name>[A-Za-z]+):(?P<rest>.*)$")
_COMMENT = re.compile(r"^ *# -- (?P<says>.*)$")

_HEAD = """# tidemill

The chart of Tidemill: one StatefulSet that runs everything, or a Deployment for each role; the
operator, and the custom resources. The page [operations.md](../../docs/how-to/operations.md)
says line by line how to install, secure, upgrade, back up and recover it.

    helm install tidemill charts/tidemill --namespace tidemill --create-namespace
    helm test tidemill --namespace tidemill

Upgrades keep data: the volume belongs to a claim that outlives the release, and the custom
resources carry `helm.sh/resource-policy: keep`. Helm never changes custom resource definitions that
it keeps; an upgrade that brings new fields applies them first:

    helm template --kube-version 1.30 charts/tidemill/charts/crds | kubectl apply --server-side --force-conflicts -f -

Uninstall in this order: delete the objects (`kubectl delete tidemill --all`), then the release,
then, if the data may go, its claims and `kubectl delete crd -l app.kubernetes.io/part-of=tidemill`.
Objects that were left behind are let go as `services/operator/README.md` says.

Kafka, Redis and S3 are those that you have: sources name their brokers, `stores` names the other
two. Nothing of the kind is bundled. Files that sources read come by `extraVolumes` and
`extraVolumeMounts`, into every pod that has the role ingest, compute or query.

## Values

| Value | Default | Meaning |
| --- | --- | --- |
"""


def documented(text: str) -> list[tuple[str, str]]:
    """(path, meaning) of every documented value, in the order of the file."""
    found: list[tuple[str, str]] = []
    path: list[tuple[int, str]] = []
    says = ""
    for line in text.splitlines():
        comment, key = _COMMENT.match(line), _KEY.match(line)
        if comment:
            says = comment["says"]
        elif key:
            depth = len(key["indent"])
            path = [*(each for each in path if each[0] < depth), (depth, key["name"])]
            if says:
                found.append((".".join(name for _, name in path), says))
            says = ""
    return found


def leaves(values: dict[str, Any], known: frozenset[str], path: str = "") -> list[str]:
    """The paths of values; what is documented as a whole is one."""
    found = []
    for name, value in values.items():
        here = f"{path}{name}"
        if isinstance(value, dict) and here not in known:
            found += leaves(value, known, f"{here}.")
        else:
            found.append(here)
    return found


def page(text: str) -> str:
    """The README of the chart, from its values.yaml."""
    values = YAML(typ="safe").load(text)
    rows = []
    for path, says in documented(text):
        value: Any = values
        for name in path.split("."):
            value = value[name]
        shown = json.dumps(value).replace("|", "\\|")
        rows.append(f"| `{path}` | `{shown}` | {says.replace('|', chr(92) + '|')} |\n")
    return _HEAD + "".join(rows)
