"""Schemas of resources beyond types: forms as patterns, rules between fields in CEL.

Each form stands for one of tidemill.runtime.resources.words. Each rule stands for one of
tidemill.runtime.resources.rules, or for a field that an existing resource may not change. Tests
hold both sides against each other. Patterns are RE2: no look-ahead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidemill.runtime.durations import DURATION_RULE
from tidemill.runtime.resources.words import (
    HEADER_VALUE,
    HOST,
    MAIL_ADDRESS,
    ORDINARY_HEADER,
    RESERVED_WORDS,
    SECRET_HEADER,
    SECRET_QUERY,
)
from tidemill.runtime.resources.words import RULES as SAYS
from tidemill.runtime.templates import TEMPLATE


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition in CEL on `self`, what is said when it does not hold, and about which field."""

    cel: str
    message: str
    field: str | None = None


@dataclass(frozen=True, slots=True)
class Form:
    """The form of a word: a pattern, lengths, words that are not allowed, or a rule."""

    pattern: str = ""
    length_max: int = 0
    length_min: int = 0
    excluded: tuple[str, ...] = ()
    rule: Rule | None = None


_LABEL = "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_PREDICATE = "([A-Za-z][A-Za-z0-9_]{0,254}|_[A-Za-z0-9_]{1,254})"
_SPAN = "".join(f"([0-9]{{1,15}}{unit})?" for unit in ("d", "h", "m", "s", "ms"))
_ZERO = "(0+d)?(0+h)?(0+m)?(0+s)?(0+ms)?"
_BELOW_50_MS = "(0+d)?(0+h)?(0+m)?(0+s)?(0*[0-4]?[0-9]ms)?"
_RESERVED = tuple(sorted(RESERVED_WORDS))
_MOMENT = "self.size() <= 64 && self.matches('^([0-9]{1,19}|[0-9]{4}-?(W[0-9]{2}|[0-9]{2}).*)$')"
_NUMBER_OR = "type(self) == int ? self >= 0 : "

FORMS: Mapping[str, Form] = {
    "dns-label": Form(f"^{_LABEL}$", 63),
    "predicate": Form(f"^{_PREDICATE}$", 255, excluded=_RESERVED),
    "column": Form(r"^[\p{L}\p{Nl}\p{No}][\p{L}\p{N}_.-]*$", 255),
    "column-type": Form(
        r"^(int|float|text|bool|timestamp|date|duration|bytes|uuid|json"
        r"|decimal\( *[0-9]{1,2} *, *[0-9]{1,2} *\))$",
        40,
    ),
    "topic": Form("^[A-Za-z0-9._-]{1,249}$", 249, excluded=(".", "..")),
    "table-name": Form("^[A-Za-z_][A-Za-z0-9_]{0,254}$", 255),
    "header-name": Form("^[A-Za-z0-9-]{1,255}$", 255),
    "http-url": Form(f"^https?://{HOST}([/?#][!-~]{{0,1000}})?$", 2_009),
    "header-value": Form(f"^{HEADER_VALUE}$", 1_000),
    "mail-address": Form(f"^{MAIL_ADDRESS}$", 320),
    "smtp-url": Form(f"^smtps?://{HOST}$", 1_009),
    "template": Form(f"^{TEMPLATE}$"),
    "redis-url": Form(f"^rediss?://{HOST}(/[0-9]{{0,5}})?$", 1_015),
    "collection": Form(f"^{_LABEL}(/{_PREDICATE})?$", 319),
    "duration": Form(f"^{_SPAN}$", 90, 2),
    "retention": Form(f"^(all|{_SPAN})$", 90, 2),
    "character": Form(length_max=1, length_min=1),
    "start-offset": Form(
        rule=Rule(f"{_NUMBER_OR}self in ['earliest', 'latest']", SAYS["start-offset"])
    ),
    "instant": Form(rule=Rule(f"{_NUMBER_OR}{_MOMENT}", SAYS["instant"])),
    "fire-from": Form(
        rule=Rule(f"{_NUMBER_OR}self in ['creation', 'beginning'] || {_MOMENT}", SAYS["fire-from"])
    ),
}
"""An instant is only looked at from afar here: whether it is one is said in the status."""

KEY_RULES: Mapping[str, Rule] = {
    "predicate": Rule(
        f"self.all(name, name.matches('^{_PREDICATE}$') && !(name in {list(_RESERVED)}))",
        SAYS["predicate"],
    ),
    "header-name": Rule(
        "self.all(name, name.matches('^[A-Za-z0-9-]{1,255}$'))", SAYS["header-name"]
    ),
    "table-name": Rule(
        "self.all(name, name.matches('^[A-Za-z_][A-Za-z0-9_]{0,254}$'))", SAYS["table-name"]
    ),
}

NAME_RULE = Rule(f"self.metadata.name.matches('^{_LABEL}$')", SAYS["dns-label"])


def _immutable(kind: str, *fields: str) -> tuple[Rule, ...]:
    return tuple(
        Rule(
            f"has(self.{name}) == has(oldSelf.{name}) && "
            f"(!has(self.{name}) || self.{name} == oldSelf.{name})",
            f"{name} cannot change while the {kind} exists: delete it first",
            f".{name}",
        )
        for name in fields
    )


def _more_columns(kind: str) -> Rule:
    """Which columns may come is decided by Tidemill and said in the status; to compare each with
    each costs too much.
    """
    return Rule(
        "has(self.columns) == has(oldSelf.columns) && (!has(self.columns) || "
        "self.columns == oldSelf.columns || self.columns.size() > oldSelf.columns.size())",
        f"columns cannot change while the {kind} exists, there may only be more of them: delete it first",
        ".columns",
    )


_EVENT_COLUMNS = Rule(
    "!has(self.eventTime) || !has(self.columns) || "
    "self.columns.all(c, !(c.name in ['time', 'expires']))",
    "an event has a time and an expires already: give the columns other names",
    ".columns",
)


def _time_column(field: str) -> Rule:
    return Rule(
        f"!has(self.eventTime) || !has(self.eventTime.{field}) || !has(self.columns) || "
        f"self.columns.exists(c, c.name == self.eventTime.{field} && c.type in ['timestamp', 'int', 'text'])",
        f"eventTime.{field} names no column that is timestamp, int (milliseconds) or text (ISO 8601)",
        ".eventTime",
    )


_FORMATS = ("json", "csv", "text", "bytes", "avro", "protobuf")
_SIGNATURES = ("standardWebhooks", "github", "stripe", "slack", "hmac")
_KEYED = "(has(self.envelope) && (has(self.envelope.upsert) || has(self.envelope.debezium)))"


def _any(field: str, *names: str) -> str:
    """Whether a field is there and has one of some fields."""
    return f"(has({field}) && ({' || '.join(f'has({field}.{name})' for name in names)}))"


def _count_of(field: str, *names: str) -> str:
    return "(" + " + ".join(f"(has({field}.{name}) ? 1 : 0)" for name in names) + ")"


def _one_of(field: str, names: tuple[str, ...]) -> Rule:
    count = " + ".join(f"(has(self.{field}.{name}) ? 1 : 0)" for name in names)
    message = f"{', '.join(names[:-1])} and {names[-1]} exclude each other"
    return Rule(f"!has(self.{field}) || {count} <= 1", message, f".{field}")


def _key_fits(envelope: str) -> Rule:
    key = f"self.envelope.{envelope}.key"
    return Rule(
        f"!has(self.envelope) || !has(self.envelope.{envelope}) || !has(self.columns) || "
        f"{key}.all(k, self.columns.exists(c, c.name == k && !(has(c.nullable) && c.nullable)))",
        f"the key of {envelope} names a column that is not there, or may be null",
        ".envelope",
    )


def _lone_column(name: str) -> tuple[Rule, Rule]:
    """Text and bytes fill one column: of the value, or of the key."""
    message = f"{name} fills one column, of type text"
    keyed = (
        "(has(self.envelope) && has(self.envelope.upsert) && c.name in self.envelope.upsert.key)"
    )
    left = f"self.columns.filter(c, !{keyed})"
    named = "self.columns.filter(c, c.name == self.envelope.upsert.key[0])"
    return (
        Rule(
            f"!has(self.format) || !has(self.format.{name}) || !has(self.columns) || "
            f"({left}.size() == 1 && {left}.all(c, c.type == 'text'))",
            message,
            ".format",
        ),
        Rule(
            f"!has(self.keyFormat) || !has(self.keyFormat.{name}) || !has(self.columns) || "
            "(has(self.envelope) && has(self.envelope.upsert) && "
            f"self.envelope.upsert.key.size() == 1 && {named}.size() == 1 && "
            f"{named}.all(c, c.type == 'text'))",
            message,
            ".keyFormat",
        ),
    )


def _no_secret_in(field: str, *parents: str) -> Rule:
    """A rule against passwords in an address, which everybody sees who may read the resource."""
    absent = "".join(f"!has({each}) || " for each in (*parents, field))
    return Rule(
        f"{absent}!{field}.matches('{SECRET_QUERY}')",
        "a secret stands behind the ? of the address: name it in secretHeaders, or by secret",
        parents[0].removeprefix("self"),
    )


def _password_with_name(field: str) -> Rule:
    registry = f"self.{field}.avro.registry"
    return Rule(
        f"!has(self.{field}) || !has(self.{field}.avro) || "
        f"has({registry}.username) == has({registry}.secret)",
        "username and secret go together",
        f".{field}",
    )


_RECORDS = (
    _one_of("format", _FORMATS),
    _one_of("keyFormat", _FORMATS),
    Rule(
        f"!has(self.keyFormat) || {_any('self.keyFormat', *_FORMATS)}",
        "say how the key is written",
        ".keyFormat",
    ),
    Rule(
        "has(self.file) || !has(self.format) || !has(self.format.csv) || "
        "!has(self.format.csv.header) || !self.format.csv.header",
        "records of a log have no header line",
        ".format",
    ),
    Rule(
        f"!has(self.http) || has(self.file) || !{_any('self.format', 'bytes', 'avro', 'protobuf')}",
        "rows are pushed as lines of json, csv or text",
        ".format",
    ),
    Rule(
        "!has(self.file) || !has(self.format) || "
        "((!has(self.format.csv) || self.file.format == 'csv') && "
        "(!has(self.format.json) || self.file.format == 'jsonl') && "
        f"!{_any('self.format', 'text', 'bytes', 'avro', 'protobuf')})",
        "the format is not that of the file",
        ".format",
    ),
    Rule(
        f"!has(self.infer) || !({_any('self.format', 'text', 'bytes', 'avro', 'protobuf')} || {_KEYED})",
        "nothing can be inferred from such records: state columns",
        ".infer",
    ),
    *_lone_column("text"),
    *_lone_column("bytes"),
    _one_of("envelope", ("none", "upsert", "debezium")),
    Rule(
        "has(self.keyFormat) == (has(self.envelope) && has(self.envelope.upsert))",
        "keyFormat says how the key is written, for the envelope upsert alone",
        ".keyFormat",
    ),
    Rule(
        f"!{_KEYED} || (!has(self.file) && !has(self.http))",
        "only records of kafka have an envelope",
        ".envelope",
    ),
    Rule(
        f"!{_KEYED} || !has(self.eventTime)",
        "an event is never replaced: no envelope goes with it",
        ".eventTime",
    ),
    Rule(
        "!has(self.envelope) || !has(self.envelope.debezium) || "
        f"!{_any('self.format', 'csv', 'text', 'bytes', 'protobuf')}",
        "changes of debezium are written as json or avro",
        ".format",
    ),
    _key_fits("upsert"),
    _key_fits("debezium"),
    Rule(
        "!has(self.envelope) || !has(self.envelope.upsert) || !has(self.columns) || "
        "self.envelope.upsert.key.size() < self.columns.size()",
        "no column is left for the value",
        ".envelope",
    ),
    Rule(
        "!has(self.engine) || self.engine != 'spark' || "
        f"!({_KEYED} && ({_any('self.format', 'avro')} || {_any('self.keyFormat', 'avro')}))",
        "Spark reads no Avro in envelopes",
        ".engine",
    ),
    Rule(
        f"!{_any('self.kafka', 'tls', 'sasl')} || has(self.kafka.bootstrap)",
        "the log of this Tidemill has neither tls nor sasl",
        ".kafka",
    ),
    Rule(
        "!has(self.kafka) || !has(self.kafka.tls) || "
        "has(self.kafka.tls.certificate) == has(self.kafka.tls.key)",
        "certificate and key go together",
        ".kafka",
    ),
    _password_with_name("format"),
    _password_with_name("keyFormat"),
    _no_secret_in("self.format.avro.registry.url", "self.format", "self.format.avro"),
    Rule(
        "!has(self.http) || !has(self.http.verify) || "
        f"{_count_of('self.http.verify', *_SIGNATURES)} == 1",
        f"exactly one of {', '.join(_SIGNATURES)} says how a delivery is signed",
        ".http",
    ),
    Rule(
        "!has(self.http) || "
        "!((has(self.http.array) && self.http.array) || "
        "(has(self.http.headers) && self.http.headers.size() > 0)) || "
        f"!{_any('self.format', 'csv', 'text', 'bytes', 'avro', 'protobuf')}",
        "only deliveries of json have array and headers",
        ".http",
    ),
    Rule(
        "!has(self.http) || !has(self.http.headers) || !has(self.columns) || "
        "self.http.headers.all(name, "
        "self.columns.exists(c, c.name == name && c.type == 'text'))",
        "each of http.headers names a column that is text",
        ".http",
    ),
    _no_secret_in("self.keyFormat.avro.registry.url", "self.keyFormat", "self.keyFormat.avro"),
)

_SOURCE = (
    Rule(
        "(has(self.kafka) ? 1 : 0) + (has(self.file) ? 1 : 0) + (has(self.http) ? 1 : 0) == 1",
        "exactly one of kafka, file and http says where the rows come from",
    ),
    *_RECORDS,
    Rule(
        "!(has(self.columns) && has(self.infer))",
        "the columns are stated, nothing is left to infer",
        ".infer",
    ),
    Rule(
        "has(self.columns) || (has(self.infer) && !has(self.http)) || "
        "(has(self.file) && self.file.format == 'parquet')",
        "columns are missing; a log or a file may have infer instead",
    ),
    _EVENT_COLUMNS,
    Rule(
        f"!has(self.timestampInterval) || !self.timestampInterval.matches('^{_BELOW_50_MS}$')",
        f"the interval is at least 50ms; {DURATION_RULE}",
        ".timestampInterval",
    ),
    Rule(
        "!has(self.eventTime) || !has(self.eventTime.silence) || "
        f"!self.eventTime.silence.matches('^{_BELOW_50_MS}$')",
        f"a silence is at least 50ms; {DURATION_RULE}",
        ".eventTime.silence",
    ),
    Rule(
        "!has(self.eventTime) || self.eventTime.timeline != 'system'",
        "system is the timeline of Tidemill itself: name an event timeline",
        ".eventTime.timeline",
    ),
    Rule(
        "!has(self.eventTime) || "
        "!(has(self.eventTime.expiresColumn) && has(self.eventTime.expiresAfter))",
        "expiresColumn and expiresAfter exclude each other",
        ".eventTime",
    ),
    Rule(
        "!has(self.eventTime) || !has(self.timeline)",
        "the timeline is that of eventTime: leave this one out",
        ".timeline",
    ),
    _time_column("column"),
    _time_column("expiresColumn"),
    Rule(
        "!has(self.timeline) || has(self.eventTime) || has(self.file)",
        "only a file can be reference data of a timeline",
        ".timeline",
    ),
    Rule(
        "!has(self.remap) || (has(self.kafka) && !has(self.eventTime) && !has(self.timeline))",
        "only sources on a topic, without eventTime and timeline, share bindings",
        ".remap",
    ),
    *_immutable(
        "Source", "kafka", "file", "http", "format", "keyFormat", "envelope", "infer",
        "timestampInterval", "eventTime", "timeline", "engine", "remap",
    ),
    _more_columns("Source"),
)  # fmt: skip

_VIEW = (
    Rule(
        "!has(self.outputs) || !has(self.columns) || self.columns.all(name, name in self.outputs)",
        "columns are named for something that is no output",
        ".columns",
    ),
    Rule(
        "!has(self.tick) || has(self.tick.period) != has(self.tick.on)",
        "exactly one of period and on says when a tick runs",
        ".tick",
    ),
    Rule(
        f"!has(self.tick) || !has(self.tick.period) || !self.tick.period.matches('^{_ZERO}$')",
        "a period is at least 1ms",
        ".tick",
    ),
    Rule(
        "!has(self.admission) || self.admission.all(name, "
        "(self.admission[name].policy == 'batch') == has(self.admission[name].rows) && "
        "(self.admission[name].policy == 'batch' || !has(self.admission[name].wait)) && "
        "(self.admission[name].policy == 'skew') == has(self.admission[name].skew))",
        "batch has rows and perhaps wait, skew has skew, the others have none of these",
        ".admission",
    ),
)

_SINKS = (
    "file", "log", "sqlite", "redis", "http", "cloudEvents", "alertmanager", "pagerDuty", "slack", "email",
)  # fmt: skip

_SECRET_NAME = f"name.matches('{SECRET_HEADER}') && !name.matches('{ORDINARY_HEADER}')"
"""Of a header: whether its value is a secret."""

_ACTION = (
    Rule(
        " + ".join(f"(has(self.sink.{kind}) ? 1 : 0)" for kind in _SINKS) + " == 1",
        f"exactly one of {', '.join(_SINKS)} says what is told",
        ".sink",
    ),
    Rule(
        "!has(self.sink.http) || !has(self.sink.http.delivery) || "
        "self.sink.http.delivery != 'askable' || "
        "(has(self.sink.http.ask) && self.sink.http.ask.contains('{key}'))",
        "delivery askable needs to know where to ask: a URL with {key} in it",
        ".sink.http",
    ),
    Rule(
        "!has(self.sink.http) || !has(self.sink.http.ask) || "
        "(has(self.sink.http.delivery) && self.sink.http.delivery == 'askable')",
        "only delivery askable asks",
        ".sink.http",
    ),
    _no_secret_in("self.sink.http.url", "self.sink.http"),
    _no_secret_in("self.sink.http.ask", "self.sink.http"),
    Rule(
        "!has(self.sink.http) || !has(self.sink.http.headers) || "
        f"!self.sink.http.headers.exists(name, {_SECRET_NAME})",
        "the value of a header is a secret, which every reader of the action would see: name it in "
        "secretHeaders",
        ".sink.http",
    ),
    *(
        _no_secret_in(f"self.sink.{kind}.url", f"self.sink.{kind}")
        for kind in ("cloudEvents", "alertmanager", "pagerDuty")
    ),
    *(
        Rule(
            f"!has(self.sink.{kind}) || !has(self.sink.{kind}.username) || has(self.sink.{kind}.secret)",
            "username and secret go together",
            f".sink.{kind}",
        )
        for kind in ("redis", "email")
    ),
    Rule(
        "!has(self.follow) || !self.follow || !has(self.eager) || !self.eager",
        "eager and follow exclude each other: what is not definite has no end yet",
        ".follow",
    ),
    Rule(
        "!has(self.sink.alertmanager) || (has(self.follow) && self.follow)",
        "an alert without follow would last for ever",
        ".follow",
    ),
    Rule(
        "!has(self.limit) || !has(self.eager) || !self.eager",
        "eager and limit exclude each other: which events come first is not definite yet",
        ".limit",
    ),
    Rule(
        "!has(self.group) || !has(self.eager) || !self.eager",
        "eager and group exclude each other: which events are in a stretch is not definite yet",
        ".group",
    ),
    Rule(
        "!has(self.group) || (!has(self.sink.alertmanager) && !has(self.sink.pagerDuty))",
        "an Alertmanager and PagerDuty group by themselves, and need each event to begin and to end",
        ".group",
    ),
    Rule(
        f"!has(self.group) || !has(self.group.within) || !self.group.within.matches('^{_ZERO}$')",
        "a group is within at least 1ms",
        ".group",
    ),
    Rule(
        "!has(self.remember) || ((!has(self.eager) || !self.eager)"
        " && (!has(self.follow) || !self.follow))",
        "remember excludes eager and follow",
        ".remember",
    ),
    Rule(
        f"!has(self.remember) || !self.remember.matches('^{_ZERO}$')",
        "an event is remembered for at least 1ms",
        ".remember",
    ),
    *_immutable(
        "Action",
        "view",
        "goal",
        "fireFrom",
        "eager",
        "follow",
        "limit",
        "group",
        "remember",
    ),
    Rule(
        # A secret in the clear, of before the rule against it, may leave an object: Tidemill
        # itself compares the rest.
        "self.sink == oldSelf.sink || (has(oldSelf.sink.http) && has(oldSelf.sink.http.headers)"
        f" && oldSelf.sink.http.headers.exists(name, {_SECRET_NAME}))",
        "sink cannot change while the Action exists: delete it first",
        ".sink",
    ),
)

_HOLD = (
    *_immutable("Hold", "collection"),
    Rule(
        "!has(oldSelf.frontier) || has(self.frontier)",
        "a hold that has a frontier keeps one",
        ".frontier",
    ),
    Rule(
        "!has(oldSelf.frontier) || !has(self.frontier) || type(self.frontier) != int || "
        "type(oldSelf.frontier) != int || self.frontier >= oldSelf.frontier",
        "the frontier of a hold only moves forward",
        ".frontier",
    ),
    Rule(
        # Texts of one form in UTC are ordered like the instants; others are compared by Tidemill
        # itself.
        "!has(oldSelf.frontier) || !has(self.frontier) || type(self.frontier) != string || "
        "type(oldSelf.frontier) != string || "
        "self.frontier.size() != oldSelf.frontier.size() || !self.frontier.endsWith('Z') || "
        "!oldSelf.frontier.endsWith('Z') || self.frontier >= oldSelf.frontier",
        "the frontier of a hold only moves forward",
        ".frontier",
    ),
)

RULES: Mapping[str, tuple[Rule, ...]] = {
    "Source": _SOURCE,
    "Table": (*_immutable("Table", "timeline"), _more_columns("Table")),
    "View": _VIEW,
    "Action": _ACTION,
    "Arrangement": _immutable("Arrangement", "collection", "key"),
    "Hold": _HOLD,
}
"""The rules on the spec of each kind."""
