"""The chart as objects, without a cluster: what Helm makes of values."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import helm_python as helm
from ruamel.yaml import YAML

Json: TypeAlias = dict[str, Any]

CHART = Path(__file__).resolve().parents[5] / "charts/tidemill"
RELEASE, NAMESPACE = "one", "air"


def rendered(values: Json) -> list[Json]:
    """Every object of the release `one` in the namespace `air`.

    Raises: HelmError for values that are refused.
    """
    return _rendered(json.dumps(values))


@cache
def _rendered(text: str) -> list[Json]:
    values = json.loads(text)
    with helm.Chart.load(str(CHART)) as chart:
        chart.validate_schema(chart.merge_values(values))
        files = chart.render(values, name=RELEASE, namespace=NAMESPACE)
    return [
        each
        for path, text in sorted(files.items())
        if path.endswith(".yaml")
        for each in _objects_in(text)
    ]


@cache
def _objects_in(text: str) -> list[Json]:
    """Objects of one rendered file. Values change few files: others are read once."""
    return [each for each in YAML(typ="safe").load_all(text) if each]


def of(kind: str, objects: list[Json]) -> dict[str, Json]:
    """Objects of a kind by name."""
    return {each["metadata"]["name"]: each for each in objects if each["kind"] == kind}


def pods(objects: list[Json]) -> list[tuple[Json, Json]]:
    """(metadata, spec) of every pod."""
    found = [
        each["spec"]["template"]
        for each in objects
        if each["kind"] in ("StatefulSet", "Deployment")
    ]
    found += [each for each in objects if each["kind"] == "Pod"]
    return [(each["metadata"], each["spec"]) for each in found]


def components(objects: list[Json]) -> dict[str, tuple[Json, Json]]:
    """(metadata, spec) of the pod of each component."""
    return {
        metadata["labels"]["app.kubernetes.io/component"]: (metadata, spec)
        for metadata, spec in pods(objects)
    }
