"""The definitions of custom resources take exactly what `tidemill apply` takes."""

from __future__ import annotations

import json
import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from tidemill.manifests.definitions import NAMES, definition, object_schema
from tidemill.runtime.documents import Document
from tidemill.runtime.resources import KINDS, load_resource_files, resource_from
from tidemill.runtime.resources.validation import find_problems
from tidemill.testkit.custom_resources import refusals, takes

ROOT = Path(__file__).resolve().parents[3]
SCHEMAS = {kind: object_schema(kind) for kind in KINDS}

COLUMNS = [{"name": "at", "type": "int"}, {"name": "who", "type": "text", "nullable": True}]
EVENT = {
    "column": "at",
    "timeline": "air",
    "expiresAfter": "1h",
    "skew": "5m",
    "late": "correct",
    "silence": "5s",
}
KEYED = [{"name": "id", "type": "text"}, {"name": "n", "type": "int"}]
SASL = {"mechanism": "SCRAM-SHA-256", "username": "u", "secret": "p"}
REGISTRY = {"url": "https://r", "username": "u", "secret": "p", "authority": "c"}
SPECS: dict[str, list[dict[str, Any]]] = {
    "Source": [
        {"kafka": {"topic": "flights", "startOffset": 17}, "columns": COLUMNS, "retain": "all"},
        {"file": {"path": "a.csv", "format": "csv"}, "infer": {"sample": 9}, "timeline": "air"},
        {"file": {"path": "a.parquet", "format": "parquet"}, "format": {}},
        {"http": {}, "columns": COLUMNS, "eventTime": EVENT, "timestampInterval": "50ms"},
        {"http": {"verify": {"github": {"secret": "s"}}, "array": True, "headers": {"who": "X-A"},
            "dedupe": "X-Id"}, "columns": COLUMNS},
        {"http": {"verify": {"hmac": {"secret": "s", "header": "X", "prefix": "p"}}},
         "format": {"csv": {}}, "columns": COLUMNS},
        {"kafka": {"topic": "t", "bootstrap": "b:1"}, "format": {"csv": {"delimiter": ";"}},
         "columns": COLUMNS, "engine": "spark"},
        {"kafka": {"topic": "t", "bootstrap": "b:1", "group": "g", "tls": {"certificate": "c",
            "key": "k"}, "sasl": SASL}, "format": {"avro": {"registry": REGISTRY}},
         "keyFormat": {"text": {}}, "envelope": {"upsert": {"key": ["id"]}}, "columns": KEYED},
        {"kafka": {"topic": "t"}, "format": {"avro": {"registry": {"url": "http://r"}}},
         "envelope": {"debezium": {"key": ["id", "n"], "before": "key"}}, "columns": KEYED},
        {"kafka": {"topic": "t"}, "format": {"avro": {"registry": {"url": "http://r"}}},
         "columns": COLUMNS, "engine": "spark"},
        {"kafka": {"topic": "t"}, "format": {"bytes": {"encoding": "hex"}}, "columns": KEYED[:1]},
        {"kafka": {"topic": "t"}, "format": {"protobuf": {"descriptorSet": "f", "message": "M",
            "framed": True}}, "envelope": {"none": {}}, "columns": COLUMNS},
    ],
    "Table": [{"columns": COLUMNS, "timeline": "air", "retain": "1d"}],
    "View": [
        {"program": "p(x) := q(x);"},
        {"program": "p(x) := q(x);", "inputs": {"q": "flights/raw"}, "outputs": ["p"],
         "columns": {"p": ["x"]}, "strategy": "retraction"},
        {"program": "p(x) @next := q(x);", "tick": {"period": "100ms"}, "nodes": 3, "place": {"q": "x"},
         "admission": {"q": {"policy": "batch", "rows": 5, "wait": "1s"}}},
        {"program": "p(x) @next := q(x);", "tick": {"on": "change"}, "hydrateFrom": 17,
         "admission": {"q": {"policy": "skew", "skew": "1s"}, "r": {"policy": "eager"}}},
    ],
    "Action": [
        {"view": "v", "goal": "p(x)", "sink": {"file": {"path": "f"}}, "fireFrom": "beginning"},
        {"view": "v", "goal": "p(x)", "sink": {"log": {"topic": "t"}}, "fireFrom": 17,
         "eager": True},
        {"view": "v", "goal": "p(x)", "sink": {"sqlite": {"path": "f", "table": "t"}}},
        {"view": "v", "goal": "p(x)", "sink": {"redis": {"url": "redis://a:1/0", "stream": "t"}}},
        {"view": "v", "goal": "p(x)", "sink": {"http": {"url": "http://a", "keyHeader": "K-1"}}},
        {"view": "v", "goal": "p(x)", "sink": {"http": {
            "url": "https://a/b", "delivery": "askable", "ask": "http://a/{key}", "timeout": "1s"}}},
        {"view": "v", "goal": "p(x)", "sink": {"http": {
            "url": "https://a", "method": "PUT", "headers": {"X-A": "b c"}, "body": "${record} $$",
            "contentType": "text/plain", "signature": "s", "certificate": {"certificate": "c", "key": "k"}}}},
        {"view": "v", "goal": "p(x)", "follow": True, "sink": {"alertmanager": {
            "url": "http://a:9093", "labels": {"team": "x"}, "summary": "${arg.x}", "description": "${proof}",
            "repeat": "30s"}}},
        {"view": "v", "goal": "p(x)", "follow": True, "sink": {"pagerDuty": {"routingKey": "r"}}},
        {"view": "v", "goal": "p(x)", "sink": {"slack": {"webhook": "w", "text": "${phase}"}},
         "limit": {"count": 3, "per": "1h", "by": ["x"]}, "group": {"within": "1m", "by": ["x"]}},
        {"view": "v", "goal": "p(x)", "sink": {"email": {"server": "smtps://m:465", "sender": "a@b",
            "to": ["c@d.example"], "username": "u", "secret": "s"}}},
        {"view": "v", "goal": "p(x)", "sink": {"cloudEvents": {
            "url": "http://a", "secretHeaders": {"Authorization": "s"}}}},
    ],
    "Arrangement": [{"collection": "flights", "key": ["id", "n"]}],
    "Hold": [{"collection": "flights"}, {"collection": "v/p", "frontier": "2013-07-04T12:00:00Z"}],
}  # fmt: skip
WORDS: list[Any] = [
    "", "a", "air", "system", "Air", "a-b", "-a", "a_b", "_", "_x", "not", "time", "expires", "ä1", "1a",
    "v/p", "v/", "v/not", "a.b", ".", "..", "x" * 64, "x" * 256, "0s", "49ms", "50ms", "0s50ms", "1m30s",
    "30s1m", "1h", "all", "1w", "json", "csv", "jsonl", "parquet", "text", "int", "earliest", "latest",
    "http://x", "ftp://x", "http://", "http://a b", "keyed", "askable", "{key}", "http://x/{key}",
    {"url": "http://x", "ask": "http://x/{key}"}, {"url": "http://x", "delivery": "askable"},
    "creation", "2013-07-04", "; ", ";", None, True, False, 0, -1, 17, 100_001, 1 << 63, 1.5, [], {}, ["p"],
    {"p": "q"}, {"_": "q"}, {"not": "q"}, {"p": ["x", "x"]}, {"name": "at", "type": "int"}, COLUMNS,
    [COLUMNS[0], COLUMNS[0]], [{"name": "time", "type": "int"}], {"csv": {}}, {"json": {}},
    {"json": {}, "csv": {}}, {"csv": {"header": True}}, {"sample": 0}, {"path": "x"},
    {"file": {"path": "x"}, "log": {"topic": "t"}}, {"path": "x", "format": "csv"}, EVENT,
    {**EVENT, "column": "who"}, {**EVENT, "column": "gone"}, {**EVENT, "timeline": "system"},
    {**EVENT, "expiresColumn": "at"}, ["id"], ["id", "n"], ["n"], ["id", "id"], {"text": {}},
    {"bytes": {}}, {"avro": {"registry": REGISTRY}}, {"avro": {"registry": {"username": "u"}}},
    {"protobuf": {"descriptorSet": "f", "message": "M"}}, {"none": {}}, {"upsert": {"key": ["id"]}},
    {"debezium": {"key": ["id"]}}, {"at": "X-A"}, {"stripe": {"secret": "s", "tolerance": "1m"}},
    {"stripe": {"secret": "s"}, "github": {"secret": "s"}}, {"none": {}, "upsert": {"key": ["id"]}}, KEYED, KEYED[:1], {"key": "k"},
    {"topic": "t", "tls": {}}, [{"name": "id", "type": "text", "nullable": True}, KEYED[1]],
]  # fmt: skip


def document(kind: str, spec: Any, name: str = "one") -> dict[str, Any]:
    return {
        "apiVersion": "tidemill.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec,
    }  # fmt: skip


def applied(value: dict[str, Any]) -> bool:
    return not find_problems(Document("test", value))


def taken(value: dict[str, Any]) -> bool:
    return takes(SCHEMAS[value["kind"]], value)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every field of a value, by its path."""
    found: list[tuple[Any, ...]] = []
    steps = value.items() if isinstance(value, dict) else enumerate(value)
    for step, inner in steps:
        found.append((*path, step))
        if isinstance(inner, dict | list):
            found += places(inner, (*path, step))
    return found


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """A document that fits, with up to two fields changed, added or taken away."""
    kind = draw(st.sampled_from(KINDS))
    spec = deepcopy(draw(st.sampled_from(SPECS[kind])))
    for _ in range(draw(st.integers(0, 2))):
        *path, last = draw(st.sampled_from(places(spec) or [("collection",)]))
        holder = spec
        for step in path:
            holder = holder[step]
        fields = sorted(SCHEMAS[kind]["properties"]["spec"]["properties"])
        change = draw(st.sampled_from(["set", "drop", "add"]))
        if change == "set":
            holder[last] = deepcopy(draw(st.sampled_from(WORDS)))
        elif change == "drop" and isinstance(holder, dict):
            holder.pop(last, None)
        else:
            spec[draw(st.sampled_from([*fields, "unknown"]))] = deepcopy(
                draw(st.sampled_from(WORDS))
            )
    return document(kind, spec)


@settings(max_examples=400, deadline=None)
@given(documents())
def test_the_cluster_takes_what_apply_takes(value: dict[str, Any]) -> None:
    refused = refusals(SCHEMAS[value["kind"]], value)
    assert taken(value) == applied(value) == (not refused), refused


@pytest.mark.parametrize("kind", KINDS)
def test_every_word_at_every_place_is_judged_alike(kind: str) -> None:
    differing = []
    for spec in SPECS[kind]:
        for path in places(spec):
            for word in WORDS:
                changed = deepcopy(spec)
                holder: Any = changed
                for step in path[:-1]:
                    holder = holder[step]
                holder[path[-1]] = word
                value = document(kind, changed)
                if taken(value) != applied(value):
                    differing.append((path, word, applied(value)))
    assert differing == []


@pytest.mark.parametrize("name", ["one", "One", "a" * 63, "a" * 64, "a.b", "-a", "1", ""])
def test_names_are_judged_alike(name: str) -> None:
    value = document("Hold", {"collection": "flights"}, name)
    assert taken(value) == applied(value)


def test_a_secret_may_leave_the_headers_of_an_object() -> None:
    def action(http: dict[str, Any], goal: str = "p(x)") -> dict[str, Any]:
        sink = {"http": {"url": "http://a", **http}}
        return document("Action", {"view": "v", "goal": goal, "sink": sink})

    named = {"secretHeaders": {"X-Auth-Key": "s"}}
    for headers, allowed in (({"X-Auth-Key": "k"}, True), ({"Idempotency-Key": "k"}, False)):
        before = action({"headers": headers})
        assert taken(before) == applied(before) == (not allowed)
        assert (refusals(SCHEMAS["Action"], action(named), before) == []) == allowed
        assert refusals(SCHEMAS["Action"], action(named, "p(y)"), before) != []


def test_the_examples_are_taken() -> None:
    found = [
        resource
        for folder in (ROOT / "examples").iterdir()
        for resource in load_resource_files([*folder.glob("*.yaml")])
    ]
    assert found
    for resource in found:
        value = resource.to_document()
        assert refusals(SCHEMAS[resource.kind], value, value) == []


def test_defaults_say_what_apply_assumes() -> None:
    for kind, specs in SPECS.items():
        for spec in specs:
            filled = defaulted(SCHEMAS[kind]["properties"]["spec"], spec)
            assert (
                resource_from(document(kind, filled)).spec
                == resource_from(document(kind, spec)).spec
            )


def defaulted(schema: dict[str, Any], value: Any) -> Any:
    """The value as the API server stores it."""
    if isinstance(value, dict):
        inner = schema.get("properties", {})
        filled = {
            name: each["default"] for name, each in inner.items() if "default" in each
        } | value
        return {name: defaulted(inner.get(name, {}), each) for name, each in filled.items()}
    if isinstance(value, list):
        return [defaulted(schema.get("items", {}), each) for each in value]
    return value


CHANGES = [
    ("Source", 0, {"retain": "1h"}, True),
    ("Source", 0, {"engine": "spark"}, False),
    ("Source", 0, {"columns": COLUMNS[:1]}, False),
    ("Source", 0, {"columns": [*COLUMNS, {"name": "more", "type": "int", "nullable": True}]}, True),
    (
        "Source",
        0,
        {"columns": [*COLUMNS[:-1], {"name": "more", "type": "int", "nullable": True}]},
        False,
    ),
    ("Source", 0, {"kafka": {"topic": "other", "startOffset": 17}}, False),
    ("Table", 0, {"retain": "all"}, True),
    ("Table", 0, {"columns": COLUMNS[:1]}, False),
    ("Table", 0, {"columns": [*COLUMNS, {"name": "more", "type": "int", "nullable": True}]}, True),
    ("View", 1, {"retain": "1h"}, True),
    ("View", 0, {"program": "p(x) := r(x);"}, True),
    ("View", 0, {"inputs": {"q": "other"}}, True),
    ("Action", 0, {"goal": "p(y)"}, False),
    ("Action", 0, {"fireFrom": "creation"}, False),
    ("Action", 0, {"eager": True}, False),
    ("Arrangement", 0, {"key": ["n"]}, False),
    ("Arrangement", 0, {"collection": "other"}, False),
    ("Hold", 0, {"frontier": 5}, True),
    ("Hold", 0, {"collection": "other"}, False),
    ("Hold", 1, {"frontier": "2013-07-05T00:00:00Z"}, True),
    ("Hold", 1, {"frontier": "2013-07-03T00:00:00Z"}, False),
    ("Hold", 1, {"frontier": None}, False),
]


@pytest.mark.parametrize(("kind", "index", "change", "allowed"), CHANGES)
def test_what_exists_changes_only_where_that_keeps_its_promises(
    kind: str, index: int, change: dict[str, Any], allowed: bool
) -> None:
    old = document(kind, SPECS[kind][index])
    merged = {**SPECS[kind][index], **change}
    new = document(kind, {name: value for name, value in merged.items() if value is not None})
    assert refusals(SCHEMAS[kind], old) == refusals(SCHEMAS[kind], new) == []
    assert (refusals(SCHEMAS[kind], new, old) == []) == allowed


@pytest.mark.parametrize(("old", "new", "allowed"), [(5, 5, True), (5, 6, True), (5, 4, False)])
def test_a_hold_only_moves_forward(old: int, new: int, allowed: bool) -> None:
    before, after = (document("Hold", {"collection": "c", "frontier": at}) for at in (old, new))
    assert (refusals(SCHEMAS["Hold"], after, before) == []) == allowed


@pytest.mark.parametrize("kind", KINDS)
def test_a_definition_is_structural(kind: str) -> None:
    """The rules of structural schemas that a mistake of ours could break."""

    def look(schema: dict[str, Any], where: str) -> None:
        assert "type" in schema or schema.get("x-kubernetes-int-or-string"), where
        assert not ("properties" in schema and "additionalProperties" in schema), where
        assert not schema.keys() & {"$ref", "propertyNames", "uniqueItems", "$schema", "title"}, (
            where
        )
        counts = re.findall(r"\{\d*,?(\d+)\}", schema.get("pattern", ""))
        assert all(int(count) <= 1_000 for count in counts), f"{where}: RE2 repeats no further"
        for rule in schema.get("x-kubernetes-validations", ()):
            assert "\n" not in rule["message"], where
            assert (
                "fieldPath" not in rule
                or rule["fieldPath"][1:].split(".")[0] in schema["properties"]
            )
        for name, inner in schema.get("properties", {}).items():
            look(inner, f"{where}.{name}")
        for name in ("items", "additionalProperties"):
            if name in schema:
                look(schema[name], f"{where}[]")

    made = definition(kind)
    (version,) = made["spec"]["versions"]
    look(version["schema"]["openAPIV3Schema"], kind)
    shown = [
        column["name"] for column in version["additionalPrinterColumns"] if not column["priority"]
    ]
    assert shown == ["READY", "SINCE", "UPPER", "LAG", "AGE"]
    assert made["spec"]["names"]["categories"] == ["tidemill"]


def test_names_are_distinct_and_the_templates_are_yaml() -> None:
    assert len({each.short for each in NAMES.values()}) == len(KINDS)
    for kind, names in NAMES.items():
        text = (ROOT / f"charts/tidemill/charts/crds/templates/{names.plural}.yaml").read_text()
        plain = "".join(line for line in text.splitlines(True) if "{{" not in line)
        for version in ((1, 1), (1, 2)):  # helm and kubectl read the older one
            reader = YAML(typ="safe")
            reader.version = version
            read = reader.load(plain)
            assert read["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
            assert json.dumps(read["spec"]) == json.dumps(definition(kind)["spec"])
