"""Rules between what a source says of its records: their format, their key, what they mean."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from tidemill.runtime.problems import Broken, FieldPath, SpecDocument, did_you_mean
from tidemill.runtime.resources.words import SECRET_QUERY

STATED = ("text", "bytes", "avro", "protobuf")
"""Formats whose records do not tell the columns."""
PUSHED = ("json", "csv", "text")
"""Formats of rows that are pushed: each is a line."""
DEBEZIUM = ("json", "avro")


def _one_format(spec: SpecDocument) -> Iterator[Broken]:
    for field in ("format", "keyFormat"):
        names = list(spec.get(field, {}))
        for extra in names[1:]:
            yield Broken((field, extra), f"{names[0]} and {extra} exclude each other")
    if "keyFormat" in spec and not spec["keyFormat"]:
        yield Broken(("keyFormat",), "is empty", "say how the key is written")


def _format_of_origin(spec: SpecDocument) -> Iterator[Broken]:
    written = spec.get("format", {})
    if "file" not in spec:
        if written.get("csv", {}).get("header"):
            yield Broken(("format", "csv", "header"), "records of a log have no header line")
        for name in written:
            if "http" in spec and name not in PUSHED:
                hint = f"one of {', '.join(PUSHED)}"
                yield Broken(("format", name), f"rows are pushed as lines, not as {name}", hint)
        return
    file_format = spec["file"]["format"]
    wanted = {"csv": "csv", "jsonl": "json"}.get(file_format)
    for name in written:
        if name != wanted:
            yield Broken(("format", name), f"the file is {file_format}")


def _nothing_to_infer(spec: SpecDocument) -> Iterator[Broken]:
    if "infer" not in spec:
        return
    for name in STATED:
        if name in spec.get("format", {}):
            yield Broken(("infer",), f"records of {name} do not tell the columns", "state columns")
    if _keyed(spec):
        yield Broken(("infer",), "the columns of an envelope are stated", "state columns")


def _lone_columns(spec: SpecDocument) -> Iterator[Broken]:
    """Text and bytes fill one column."""
    columns = {column["name"]: column["type"] for column in spec.get("columns", [])}
    if not columns:
        return
    key = _upsert_key(spec)
    for name in ("text", "bytes"):
        left = [kind for column, kind in columns.items() if column not in key]
        if name in spec.get("format", {}) and left != ["text"]:
            yield Broken(("format", name), f"{name} fills one column, of type text")
        if name in spec.get("keyFormat", {}) and [columns.get(each) for each in key] != ["text"]:
            yield Broken(("keyFormat", name), f"{name} fills one column, of type text")


def _envelope_fits(spec: SpecDocument) -> Iterator[Broken]:
    envelope = spec.get("envelope", {})
    names = list(envelope)
    for extra in names[1:]:
        yield Broken(("envelope", extra), f"{names[0]} and {extra} exclude each other")
    if "keyFormat" in spec and "upsert" not in envelope:
        yield Broken(("keyFormat",), "only the envelope upsert reads keys")
    if "upsert" in envelope and "keyFormat" not in spec:
        yield Broken(("envelope", "upsert"), "keyFormat is missing", "say how the key is written")
    if not _keyed(spec):
        return
    for field in ("file", "http"):
        if field in spec:
            yield Broken((field,), "only records of kafka have an envelope")
    if "eventTime" in spec:
        yield Broken(("eventTime",), "an event is never replaced: no envelope goes with it")
    for name in spec.get("format", {}):
        if "debezium" in envelope and name not in DEBEZIUM:
            says = f"changes of debezium are written as {' or '.join(DEBEZIUM)}, not {name}"
            yield Broken(("format", name), says)


def _key_fits(spec: SpecDocument) -> Iterator[Broken]:
    columns = {each["name"]: each.get("nullable", False) for each in spec.get("columns", [])}
    if not columns:
        return
    for envelope in ("upsert", "debezium"):
        key = spec.get("envelope", {}).get(envelope, {}).get("key", [])
        for index, name in enumerate(key):
            path = ("envelope", envelope, "key", index)
            if name not in columns:
                yield Broken(path, f'no column "{name}"', did_you_mean(name, columns))
            elif columns[name]:
                yield Broken(path, f'the column "{name}" may be null', "a key is never null")
        if envelope == "upsert" and key and len(key) >= len(columns):
            says = "no column is left for the value"
            yield Broken(("envelope", envelope, "key"), says, "name fewer columns")


def _engine_fits(spec: SpecDocument) -> Iterator[Broken]:
    if spec.get("engine") != "spark":
        return
    if _keyed(spec) and any("avro" in spec.get(field, {}) for field in ("format", "keyFormat")):
        yield Broken(("engine",), "Spark reads no Avro in envelopes", "write auto or local")


def _connection_fits(spec: SpecDocument) -> Iterator[Broken]:
    kafka = spec.get("kafka", {})
    for field in ("tls", "sasl"):
        if field in kafka and "bootstrap" not in kafka:
            yield Broken(("kafka", field), "the log of this Tidemill has none", "name bootstrap")
    tls = kafka.get("tls", {})
    if ("certificate" in tls) != ("key" in tls):
        yield Broken(("kafka", "tls"), "certificate and key go together")
    for field in ("format", "keyFormat"):
        registry = spec.get(field, {}).get("avro", {}).get("registry", {})
        path = (field, "avro", "registry")
        if ("username" in registry) != ("secret" in registry):
            yield Broken(path, "username and secret go together")
        yield from secret_in_url(registry, "url", path)


def secret_in_url(part: SpecDocument, field: str, path: FieldPath) -> Iterator[Broken]:
    """Refusal of a secret in an address, which every reader of the resource sees."""
    if re.search(SECRET_QUERY, str(part.get(field, ""))):
        says = "a secret stands behind the ? of the address"
        yield Broken((*path, field), says, "name it in secretHeaders, or by secret")


def _keyed(spec: SpecDocument) -> bool:
    return bool(spec.get("envelope", {}).keys() & {"upsert", "debezium"})


def _upsert_key(spec: SpecDocument) -> list[str]:
    key: list[str] = spec.get("envelope", {}).get("upsert", {}).get("key", [])
    return key


SIGNATURES = ("standardWebhooks", "github", "stripe", "slack", "hmac")


def _webhook_fits(spec: SpecDocument) -> Iterator[Broken]:
    http = spec.get("http", {})
    if "verify" in http:
        names = [name for name in SIGNATURES if name in http["verify"]]
        if not names:
            yield Broken(("http", "verify"), f"one of {', '.join(SIGNATURES)} is missing")
        for extra in names[1:]:
            yield Broken(("http", "verify", extra), f"{names[0]} and {extra} exclude each other")
    written = set(spec.get("format", {})) - {"json"}
    for field in ("array", "headers"):
        if http.get(field) and written:
            yield Broken(("http", field), f"only deliveries of json have {field}")
    types = {column["name"]: column["type"] for column in spec.get("columns", [])}
    for name in http.get("headers", {}):
        path: FieldPath = ("http", "headers", name)
        if name not in types:
            yield Broken(path, f'no column "{name}"', did_you_mean(name, types))
        elif types[name] != "text":
            yield Broken(path, f'the column "{name}" is {types[name]}', "a header fills text")


RECORD_RULES: tuple[Callable[[SpecDocument], Iterator[Broken]], ...] = (
    _one_format,
    _format_of_origin,
    _nothing_to_infer,
    _lone_columns,
    _envelope_fits,
    _key_fits,
    _engine_fits,
    _connection_fits,
    _webhook_fits,
)
