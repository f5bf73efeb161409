"""Rules between the fields of a spec, beyond schemas.

Each becomes a CEL rule of the CRD by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tidemill.runtime.durations import parse_duration
from tidemill.runtime.problems import Broken, FieldPath, SpecDocument, did_you_mean
from tidemill.runtime.resources.record_rules import RECORD_RULES, secret_in_url
from tidemill.runtime.resources.words import names_secret

TIMESTAMP_INTERVAL_MS_MIN = 50
SYSTEM_TIMELINE = "system"
EVENT_COLUMNS = ("time", "expires")


def broken_rules(kind: str, spec: SpecDocument) -> Iterator[Broken]:
    """Every rule between fields that `spec` breaks; `spec` must fit the schema of its kind."""
    for rule in _RULES[kind]:
        yield from rule(spec)


def _one_origin(spec: SpecDocument) -> Iterator[Broken]:
    yield from _exactly_one(spec, (), ("kafka", "file", "http"), "say where the rows come from")


def _columns_known(spec: SpecDocument) -> Iterator[Broken]:
    if "columns" in spec and "infer" in spec:
        yield Broken(("infer",), "the columns are stated, nothing is left to infer")
    if "columns" in spec or spec.get("file", {}).get("format") == "parquet":
        return
    if "http" in spec:
        hint = "nothing can be inferred before the first push"
        yield Broken(("infer",) if "infer" in spec else (), "http needs columns", hint)
    elif "infer" not in spec and ("kafka" in spec or "file" in spec):
        yield Broken((), 'missing field "columns"', "or write infer: {} to find them from a sample")


def _columns_differ(spec: SpecDocument) -> Iterator[Broken]:
    names = [column["name"] for column in spec.get("columns", [])]
    for index, name in enumerate(names):
        if name in names[:index]:
            yield Broken(("columns", index, "name"), f'the column "{name}" is there twice')
        if "eventTime" in spec and name in EVENT_COLUMNS:
            says = f'an event has a "{name}" already: its {name} on the timeline'
            yield Broken(("columns", index, "name"), says, "give the column another name")


def _interval_long_enough(spec: SpecDocument) -> Iterator[Broken]:
    interval = parse_duration(spec.get("timestampInterval", "1s"))
    if interval is not None and interval < TIMESTAMP_INTERVAL_MS_MIN:
        says = f"{interval} is too short"
        yield Broken(("timestampInterval",), says, f"at least {TIMESTAMP_INTERVAL_MS_MIN}ms")


def _event_time_fits(spec: SpecDocument) -> Iterator[Broken]:
    event = spec.get("eventTime")
    if event is None:
        return
    if event["timeline"] == SYSTEM_TIMELINE:
        says = '"system" is the timeline of Tidemill itself'
        yield Broken(("eventTime", "timeline"), says, "name an event timeline")
    if "expiresColumn" in event and "expiresAfter" in event:
        says = "expiresColumn and expiresAfter exclude each other"
        yield Broken(("eventTime", "expiresAfter"), says)
    silence = parse_duration(event.get("silence", "1s"))
    if silence is not None and silence < TIMESTAMP_INTERVAL_MS_MIN:
        says = f"{silence} is too short"
        yield Broken(("eventTime", "silence"), says, f"at least {TIMESTAMP_INTERVAL_MS_MIN}ms")
    if "timeline" in spec:
        yield Broken(("timeline",), "the timeline is that of eventTime", "leave this one out")
    if "columns" not in spec:
        return
    types = {column["name"]: column["type"] for column in spec["columns"]}
    for field in ("column", "expiresColumn"):
        name = event.get(field)
        if name is not None and name not in types:
            yield Broken(("eventTime", field), f'no column "{name}"', did_you_mean(name, types))
        elif name is not None and types[name] not in ("int", "text", "timestamp"):
            says = f'the column "{name}" is {types[name]}'
            hint = "a time is timestamp, int (milliseconds) or text (ISO 8601)"
            yield Broken(("eventTime", field), says, hint)


def _timeline_of_files(spec: SpecDocument) -> Iterator[Broken]:
    if "timeline" in spec and "eventTime" not in spec and "file" not in spec:
        hint = "leave it out, or say with eventTime how rows become events"
        yield Broken(("timeline",), "only a file can be reference data of a timeline", hint)


def _bindings_to_share(spec: SpecDocument) -> Iterator[Broken]:
    if "remap" not in spec:
        return
    if "kafka" not in spec:
        says = "only sources on a topic share bindings"
        hint = "rows that are pushed, or numbered in files, belong to one source: leave it out"
        yield Broken(("remap",), says, hint)
    for field in ("eventTime", "timeline"):
        if field in spec:
            says = f"a source with {field} has bindings of its own: its retention keeps them"
            yield Broken(("remap",), says, "leave one of the two out")


def _one_sink(spec: SpecDocument) -> Iterator[Broken]:
    sink = spec["sink"]
    kinds = (
        "file", "log", "sqlite", "redis", "http", "cloudEvents", "alertmanager", "pagerDuty", "slack", "email",
    )  # fmt: skip
    yield from _exactly_one(sink, ("sink",), kinds, "say what is told")
    http = sink.get("http", {})
    askable = http.get("delivery") == "askable"
    if askable and "{key}" not in http.get("ask", ""):
        hint = "write a URL with {key} in it, where 404 says that the key was never seen"
        yield Broken(("sink", "http"), "delivery askable needs to know where to ask", hint)
    if "ask" in http and not askable:
        hint = "write delivery: askable, or leave it out"
        yield Broken(("sink", "http", "ask"), "only delivery askable asks", hint)
    for field in ("url", "ask"):
        yield from secret_in_url(http, field, ("sink", "http"))
    for name in http.get("headers", {}):
        if names_secret(name):
            says = (
                "the value of this header is a secret, which every reader of the action would see"
            )
            yield Broken(("sink", "http", "headers", name), says, "name it in secretHeaders")
    for kind in ("redis", "email"):
        login = sink.get(kind, {})
        if "username" in login and "secret" not in login:
            yield Broken(("sink", kind), "username and secret go together")
    for kind in ("cloudEvents", "alertmanager", "pagerDuty"):
        yield from secret_in_url(sink.get(kind, {}), "url", ("sink", kind))


def _followed(spec: SpecDocument) -> Iterator[Broken]:
    if spec.get("follow") and spec.get("eager"):
        says = "eager and follow exclude each other: what is not definite has no end yet"
        yield Broken(("follow",), says, "leave one of the two out")
    if spec.get("limit") and spec.get("eager"):
        says = "eager and limit exclude each other: which events come first is not definite yet"
        yield Broken(("limit",), says, "leave one of the two out")
    yield from _grouped(spec)
    yield from _remembered(spec)
    if "alertmanager" in spec["sink"] and not spec.get("follow"):
        says = "an alert without follow would last for ever"
        yield Broken(("follow",), says, "write follow: true")


def _remembered(spec: SpecDocument) -> Iterator[Broken]:
    if "remember" not in spec:
        return
    for field, says in (
        ("eager", "what fires early has no instant yet"),
        ("follow", "an event may end at any time"),
    ):
        if spec.get(field):
            says = f"{field} and remember exclude each other: {says}"
            yield Broken(("remember",), says, "leave one of the two out")
    if parse_duration(spec["remember"]) == 0:
        yield Broken(("remember",), "0 is too short", "at least 1ms")


def _grouped(spec: SpecDocument) -> Iterator[Broken]:
    group = spec.get("group")
    if group is None:
        return
    if spec.get("eager"):
        says = (
            "eager and group exclude each other: which events are in a stretch is not definite yet"
        )
        yield Broken(("group",), says, "leave one of the two out")
    for sink in ("alertmanager", "pagerDuty"):
        if sink in spec["sink"]:
            says = f"{sink} groups by itself, and needs each event to begin and to end"
            yield Broken(("group",), says, "leave it out")
    if parse_duration(group["within"]) == 0:
        yield Broken(("group", "within"), "0 is too short", "at least 1ms")


def _named_outputs(spec: SpecDocument) -> Iterator[Broken]:
    outputs = spec.get("outputs")
    for name in spec.get("columns", {}):
        if outputs is not None and name not in outputs:
            says = f'"{name}" is no output'
            yield Broken(("columns", name), says, did_you_mean(name, outputs))


def _ticks_told(spec: SpecDocument) -> Iterator[Broken]:
    tick = spec.get("tick")
    if tick is None:
        return
    yield from _exactly_one(tick, ("tick",), ("period", "on"), "say when a tick runs")
    if parse_duration(tick.get("period", "1s")) == 0:
        yield Broken(("tick", "period"), "0 is too short", "at least 1ms")


_ADMITTING = {"batch": ("rows",), "skew": ("skew",)}


def _admissions_told(spec: SpecDocument) -> Iterator[Broken]:
    for name, admission in spec.get("admission", {}).items():
        path: FieldPath = ("admission", name)
        policy = admission["policy"]
        for field in _ADMITTING.get(policy, ()):
            if field not in admission:
                yield Broken(path, f"{policy} needs {field}")
        for field, of in (("rows", "batch"), ("wait", "batch"), ("skew", "skew")):
            if field in admission and policy != of:
                yield Broken((*path, field), f"only {of} has {field}")


def _exactly_one(
    written: SpecDocument, path: FieldPath, names: tuple[str, ...], purpose: str
) -> Iterator[Broken]:
    present = [name for name in names if name in written]
    if not present:
        yield Broken(path, f"one of {', '.join(names)} is missing", purpose)
    for extra in present[1:]:
        yield Broken((*path, extra), f"{present[0]} and {extra} exclude each other")


_RULES: dict[str, tuple[Callable[[SpecDocument], Iterator[Broken]], ...]] = {
    "Source": (
        _one_origin,
        *RECORD_RULES,
        _columns_known,
        _columns_differ,
        _interval_long_enough,
        _event_time_fits,
        _timeline_of_files,
        _bindings_to_share,
    ),
    "Table": (_columns_differ,),
    "View": (_named_outputs, _ticks_told, _admissions_told),
    "Action": (_one_sink, _followed),
    "Arrangement": (),
    "Hold": (),
}
