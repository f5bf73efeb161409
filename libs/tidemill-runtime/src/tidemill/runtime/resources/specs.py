"""Specifications of each kind of resource, as typed structs.

The words for users are in the schemas.

Fields are named as in the documents, in the spelling of Python: `timestampInterval` is
`timestamp_interval`. Durations are Milliseconds, an int. A retention of None keeps everything.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from tidemill.runtime.durations import Milliseconds

Engine: TypeAlias = Literal["auto", "local", "spark"]
ColumnType: TypeAlias = str

SECOND = Milliseconds(1_000)
TEN_MINUTES = Milliseconds(600_000)
DAY = Milliseconds(86_400_000)


class Spec(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename="camel",
    omit_defaults=True,
    forbid_unknown_fields=True,
):
    """A part of a document."""


class ColumnSpec(Spec, frozen=True, kw_only=True):
    """One column of a source or table."""

    name: str
    type: ColumnType
    nullable: bool = False


class KafkaTls(Spec, frozen=True, kw_only=True):
    """TLS with the brokers, by names of secrets.

    Without `authority` the machine's authorities are trusted.
    """

    authority: str | None = None
    certificate: str | None = None
    key: str | None = None


class KafkaSasl(Spec, frozen=True, kw_only=True):
    """Login of a reader; `secret` names the password."""

    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
    username: str
    secret: str


class KafkaOrigin(Spec, frozen=True, kw_only=True):
    """A topic; without `bootstrap` in the log of this Tidemill.

    With roles, `readers` processes share its partitions: reader k has those whose number leaves k.
    """

    topic: str
    bootstrap: str | None = None
    start_offset: Literal["earliest", "latest"] | int = "earliest"
    group: str | None = None
    readers: int = 1
    tls: KafkaTls | None = None
    sasl: KafkaSasl | None = None


class FileOrigin(Spec, frozen=True, kw_only=True):
    """A file of rows."""

    path: str
    format: Literal["csv", "parquet", "jsonl"]


class SignatureSpec(Spec, frozen=True, kw_only=True):
    """Signatures of a service by a secret; `tolerance` limits the age of a signed instant."""

    secret: str
    tolerance: Milliseconds = Milliseconds(300_000)


class GithubSpec(Spec, frozen=True, kw_only=True):
    """Signatures of GitHub by a secret; GitHub signs no instant."""

    secret: str


class HmacSpec(Spec, frozen=True, kw_only=True):
    """An HMAC of the body in a header, behind a prefix."""

    secret: str
    header: str
    algorithm: Literal["sha256", "sha512"] = "sha256"
    encoding: Literal["hex", "base64"] = "hex"
    prefix: str = ""


class VerifySpec(Spec, frozen=True, kw_only=True):
    """Exactly one is set."""

    standard_webhooks: SignatureSpec | None = None
    github: GithubSpec | None = None
    stripe: SignatureSpec | None = None
    slack: SignatureSpec | None = None
    hmac: HmacSpec | None = None

    @property
    def secret(self) -> str:
        """The name of the secret, each line of whose file is a key."""
        found = self.standard_webhooks or self.github or self.stripe or self.slack or self.hmac
        assert found is not None
        return found.secret


class HttpOrigin(Spec, frozen=True, kw_only=True):
    """Rows that are pushed; the fields are of deliveries of webhooks.

    `headers` name the header that fills a column, `dedupe` the one that identifies a delivery.
    """

    verify: VerifySpec | None = None
    array: bool = False
    headers: dict[str, str] = {}
    dedupe: str | None = None


class JsonSpec(Spec, frozen=True, kw_only=True):
    """One JSON object a record."""


class CsvSpec(Spec, frozen=True, kw_only=True):
    """One line a record. `header` of None: files have one, logs have none."""

    delimiter: str = ","
    header: bool | None = None


class TextSpec(Spec, frozen=True, kw_only=True):
    """UTF-8 text in the only column."""


class BytesSpec(Spec, frozen=True, kw_only=True):
    """Any bytes, written as text in the only column."""

    encoding: Literal["base64", "hex"] = "base64"


class RegistrySpec(Spec, frozen=True, kw_only=True):
    """A schema registry; `secret` names the password, `authority` the certificates to trust."""

    url: str
    username: str | None = None
    secret: str | None = None
    authority: str | None = None


class AvroSpec(Spec, frozen=True, kw_only=True):
    """Records that name their schema by its number in a registry."""

    registry: RegistrySpec


class ProtobufSpec(Spec, frozen=True, kw_only=True):
    """A message of a descriptor set, which is read once, when the source is made."""

    descriptor_set: str
    message: str
    framed: bool = False


class FormatSpec(Spec, frozen=True, kw_only=True):
    """Format of a record; at most one is set, none is JSON."""

    json: JsonSpec | None = None
    csv: CsvSpec | None = None
    text: TextSpec | None = None
    bytes: BytesSpec | None = None
    avro: AvroSpec | None = None
    protobuf: ProtobufSpec | None = None


class NoEnvelope(Spec, frozen=True, kw_only=True):
    """A record is a row."""


class UpsertSpec(Spec, frozen=True, kw_only=True):
    """A record is the row of its key from now on; `key` names the columns that the key fills."""

    key: tuple[str, ...]


class DebeziumSpec(Spec, frozen=True, kw_only=True):
    """A record is a change of a row, which the columns of `key` tell from others."""

    key: tuple[str, ...]
    before: Literal["full", "key"] = "full"


class EnvelopeSpec(Spec, frozen=True, kw_only=True):
    """Meaning of a record; at most one is set, none is a row that comes and stays."""

    none: NoEnvelope | None = None
    upsert: UpsertSpec | None = None
    debezium: DebeziumSpec | None = None

    @property
    def key(self) -> tuple[str, ...]:
        """The columns that tell rows apart; none if nothing does."""
        keyed = self.upsert or self.debezium
        return () if keyed is None else keyed.key


class InferSpec(Spec, frozen=True, kw_only=True):
    """Find the columns from a sample."""

    sample: int = 200


class EventTimeSpec(Spec, frozen=True, kw_only=True):
    """Event time of rows. Without both `expires_…` an event never ends."""

    column: str
    timeline: str
    expires_column: str | None = None
    expires_after: Milliseconds | None = None
    skew: Milliseconds = Milliseconds(0)
    idle_timeout: Milliseconds | None = None
    silence: Milliseconds | None = None
    late: Literal["reject", "correct"] = "reject"
    max_ahead: Milliseconds = DAY


class SourceSpec(Spec, frozen=True, kw_only=True):
    """Exactly one of `kafka`, `file`, `http` is set; `columns` are empty if they are inferred.

    Sources that state the same name as `remap` share their bindings.
    """

    kafka: KafkaOrigin | None = None
    file: FileOrigin | None = None
    http: HttpOrigin | None = None
    format: FormatSpec = FormatSpec()
    key_format: FormatSpec | None = None
    envelope: EnvelopeSpec = EnvelopeSpec()
    columns: tuple[ColumnSpec, ...] = ()
    infer: InferSpec | None = None
    timestamp_interval: Milliseconds = SECOND
    retain: Milliseconds | None = TEN_MINUTES
    event_time: EventTimeSpec | None = None
    timeline: str | None = None
    engine: Engine = "auto"
    remap: str | None = None


class TableSpec(Spec, frozen=True, kw_only=True):
    """A collection that users write."""

    columns: tuple[ColumnSpec, ...]
    timeline: str = "system"
    retain: Milliseconds | None = TEN_MINUTES


class TickSpec(Spec, frozen=True, kw_only=True):
    """When the ticks of a program with `@next` or `@async` run: `period` or `on`.

    `number` names a relation with one row, the number of the tick.
    """

    period: Milliseconds | None = None
    on: Literal["change"] | None = None
    number: str | None = None


class AdmissionSpec(Spec, frozen=True, kw_only=True):
    """Admission of an input to ticks: `rows` and `wait` of a batch, `skew` of a skew."""

    policy: Literal["tick", "stratum", "eager", "batch", "skew"]
    rows: int | None = None
    wait: Milliseconds | None = None
    skew: Milliseconds | None = None


class LimitsSpec(Spec, frozen=True, kw_only=True):
    """Limits of a view whose evaluation might not end, or not fit."""

    rounds: int = 1_000_000
    rows: int = 100_000_000
    set_values: int = 1_000_000


class ViewSpec(Spec, frozen=True, kw_only=True):
    """A program; without `outputs` all derived predicates become collections.

    `lattices` and `functions` of other distributions are named with their versions, `bits@1`.
    `hydrate_from` is an instant in milliseconds; None looks as far back as the inputs can be read.
    Each of `ranges` may be kept by a process of its own.
    """

    program: str
    lattices: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()
    inputs: dict[str, str] = {}
    outputs: tuple[str, ...] = ()
    columns: dict[str, tuple[str, ...]] = {}
    retain: Milliseconds | None = TEN_MINUTES
    strategy: Literal["strata", "retraction"] = "strata"
    engine: Literal["auto", "local", "spark"] = "auto"
    hydrate_from: int | None = None
    takeover: Literal["auto", "manual"] = "auto"
    ranges: int = 1
    tick: TickSpec | None = None
    nodes: int = 1
    place: dict[str, str] = {}
    admission: dict[str, AdmissionSpec] = {}
    limits: LimitsSpec = LimitsSpec()


class FileSinkSpec(Spec, frozen=True, kw_only=True):
    """Lines of JSON at the end of a file."""

    path: str


class LogSinkSpec(Spec, frozen=True, kw_only=True):
    """Records in a topic of the log."""

    topic: str


class SqliteSinkSpec(Spec, frozen=True, kw_only=True):
    """Rows in a table of an SQLite database, with their keys and a fence."""

    path: str
    table: str = "actions"


class RedisSinkSpec(Spec, frozen=True, kw_only=True):
    """Entries of a Redis stream, with their keys and a fence in the same slot."""

    url: str
    username: str | None = None
    secret: str | None = None
    stream: str = "actions"
    allow_non_durable: bool = False


class ClientCertificateSpec(Spec, frozen=True, kw_only=True):
    """Secrets that are a certificate and its key, with which a client shows who it is."""

    certificate: str
    key: str


class HttpSinkSpec(Spec, frozen=True, kw_only=True):
    """Requests to an endpoint; `ask` is where to ask for a key, `secret_headers` name secrets by
    header.
    """

    url: str
    delivery: Literal["keyed", "askable", "atLeastOnce", "atMostOnce"] = "keyed"
    key_header: str = "Idempotency-Key"
    ask: str | None = None
    method: Literal["POST", "PUT", "PATCH"] = "POST"
    headers: dict[str, str] = {}
    secret_headers: dict[str, str] = {}
    content_type: str = "application/json"
    body: str | None = None
    signature: str | None = None
    certificate: ClientCertificateSpec | None = None
    timeout: Milliseconds = Milliseconds(10_000)

    @property
    def is_json(self) -> bool:
        """Whether `body` is a text of JSON."""
        return self.content_type.partition(";")[0].strip().endswith("json")


class CloudEventsSinkSpec(Spec, frozen=True, kw_only=True):
    """Events in the structured mode of CloudEvents 1.0."""

    url: str
    secret_headers: dict[str, str] = {}
    timeout: Milliseconds = Milliseconds(10_000)


class AlertmanagerSinkSpec(Spec, frozen=True, kw_only=True):
    """Alerts of an Alertmanager, told again each `repeat` while their event lasts."""

    url: str
    labels: dict[str, str] = {}
    summary: str = "${record}"
    description: str = ""
    secret_headers: dict[str, str] = {}
    repeat: Milliseconds = Milliseconds(60_000)
    timeout: Milliseconds = Milliseconds(10_000)


class PagerDutySinkSpec(Spec, frozen=True, kw_only=True):
    """Events v2 of PagerDuty; `routing_key` names a secret."""

    routing_key: str
    url: str = "https://events.pagerduty.com/v2/enqueue"
    severity: Literal["critical", "error", "warning", "info"] = "error"
    summary: str = "${record}"
    description: str = ""
    timeout: Milliseconds = Milliseconds(10_000)


class SlackSinkSpec(Spec, frozen=True, kw_only=True):
    """Messages of an incoming webhook; `webhook` names the secret that is its URL."""

    webhook: str
    text: str = "${action} ${phase}: ${record}"
    timeout: Milliseconds = Milliseconds(10_000)


class EmailSinkSpec(Spec, frozen=True, kw_only=True):
    """Mails over SMTP; those about one event are one thread."""

    server: str
    sender: str
    to: tuple[str, ...]
    username: str | None = None
    secret: str | None = None
    subject: str = "${action}: ${record}"
    text: str = "${phase} of ${record} at ${instant}"
    timeout: Milliseconds = Milliseconds(10_000)


class SinkSpec(Spec, frozen=True, kw_only=True):
    """Exactly one is set."""

    file: FileSinkSpec | None = None
    log: LogSinkSpec | None = None
    sqlite: SqliteSinkSpec | None = None
    redis: RedisSinkSpec | None = None
    http: HttpSinkSpec | None = None
    cloud_events: CloudEventsSinkSpec | None = None
    alertmanager: AlertmanagerSinkSpec | None = None
    pager_duty: PagerDutySinkSpec | None = None
    slack: SlackSinkSpec | None = None
    email: EmailSinkSpec | None = None


class RateSpec(Spec, frozen=True, kw_only=True):
    """At most `count` events are told to begin in each stretch of `per` of the timeline.

    With `by`, names of arguments of the goal, each group of events with equal ones has its own.
    """

    count: int
    per: Milliseconds
    by: tuple[str, ...] = ()


class GroupSpec(Spec, frozen=True, kw_only=True):
    """Events in one stretch of the timeline, with equal arguments `by`, are told in one message."""

    within: Milliseconds
    by: tuple[str, ...] = ()


class ActionSpec(Spec, frozen=True, kw_only=True):
    """A goal and what is told; `fire_from` is a word or an instant in milliseconds.

    An `eager` one fires what follows from what has come, before it is definite. One that `follow`s
    tells also when an event changes, and when it ends. One that `remember`s for a while fires for
    no event that begins later than that after its time.
    """

    view: str
    goal: str
    sink: SinkSpec
    fire_from: Literal["creation", "beginning"] | int = "creation"
    eager: bool = False
    follow: bool = False
    limit: RateSpec | None = None
    group: GroupSpec | None = None
    remember: Milliseconds | None = None


class ArrangementSpec(Spec, frozen=True, kw_only=True):
    """The columns by which rows of `collection` are to be found."""

    collection: str
    key: tuple[str, ...]


class HoldSpec(Spec, frozen=True, kw_only=True):
    """Keeps history from `frontier` on, an instant in milliseconds; None is the since of today."""

    collection: str
    frontier: int | None = None


def retained_ms(spec: SourceSpec | TableSpec | ViewSpec) -> int | None:
    """Milliseconds behind upper at which the collections of a resource can be read; None: all
    history.

    At least one, the last instant below upper. With none there would be no instant to read, and a
    new row could not be told from an old one.
    """
    return None if spec.retain is None else max(1, int(spec.retain))


class UnreadableSpec(Spec, frozen=True, kw_only=True):
    """A stored spec that cannot be read: the `spec` as it may be shown, and the reason.

    `fields` are the names of those that are wrong; none where nobody can tell.
    """

    spec: dict[str, Any]
    why: str
    fields: tuple[str, ...] = ()


DeclaredSpec: TypeAlias = (
    SourceSpec | TableSpec | ViewSpec | ActionSpec | ArrangementSpec | HoldSpec
)
AnySpec: TypeAlias = DeclaredSpec | UnreadableSpec
