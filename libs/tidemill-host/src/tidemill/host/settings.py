"""Settings of every process, whatever its roles; a service adds those of its own part."""

from __future__ import annotations

import os
from math import inf
from pathlib import Path
from typing import Literal
from urllib.parse import parse_qsl, quote, urlsplit

import msgspec

from tidemill.catalog.apply.documents import DocumentLimits
from tidemill.catalog.plugins import LOAD_S
from tidemill.errors import UsageError
from tidemill.rpc.admission import CallLimits
from tidemill.rpc.identity import GRACE_S
from tidemill.rpc.tls import TlsFiles
from tidemill.runtime.http_server import HttpLimits
from tidemill.runtime.kafka_access import KafkaFiles
from tidemill.runtime.places import PlaceSettings
from tidemill.shard.claims import LEASE_S
from tidemill.shard.conforming import INCOMING_BYTES_MAX, ROW_BYTES_MAX
from tidemill.shard.part_store import CACHE_BYTES_MAX
from tidemill.shard.stores import BlobPlace
from tidemill.spark.pod_settings import PodSettings

SECTIONS = ("ingest", "reclock", "compute", "compaction", "query")
"""Sections of one service each. One file is for all processes; each reads the sections of its own.
"""


class SparkSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Place and resources of bulk jobs."""

    launcher: Literal["process", "kubernetes", "sparkapplication"] = "process"
    """Launcher of jobs: `process` starts a process of this machine, `kubernetes` pods for driver
    and executors, `sparkapplication` the same pods through the cluster's Spark operator.
    """

    jars: str = ".cache/spark/jars"
    """For processes, the folder with the jars of the Kafka connector; only sources on Kafka need
    it."""

    cores: int = 2
    """Threads of a job that is a process."""

    memory_mb: int = 1_024
    """Heap of the JVM of a job that is a process."""

    pods: PodSettings = PodSettings()


class StoreSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Stores of collections in place of the state directory."""

    consensus: str = ""
    """Store of versions, redis://HOST:PORT/DB or sqlite:FILE; empty is a file in the state
    directory."""

    password_file: str = ""
    """File with the password of Redis; none is taken from the address."""

    blob: str = ""
    """Store of objects, s3://BUCKET/PREFIX?endpoint=URL&region=NAME or file:FOLDER; empty is the
    state directory."""

    access_key: str = ""
    """Name of the key of the bucket; empty takes AWS_ACCESS_KEY_ID, or the machine's own
    identity."""

    secret_key_file: str = ""
    """File with the secret of the same key."""

    allow_non_durable: bool = False
    """Start on a Redis that may lose what it has acknowledged; health and metrics then say so."""


class TlsSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """PEM files of one end of connections, read anew when they change."""

    certificate: str = ""
    """Certificate of this end, with its chain behind it."""

    key: str = ""
    """Key of the certificate."""

    authority: str = ""
    """Authority that must have signed the certificate of the other end."""

    @property
    def files(self) -> TlsFiles | None:
        """The files; None if none is named."""
        if not (self.certificate or self.key or self.authority):
            return None
        return TlsFiles(
            *(Path(f) if f else None for f in (self.certificate, self.key, self.authority))
        )


class ServicesSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Connections and claims among the processes of a system that is split into roles."""

    address: str = "127.0.0.1:7473"
    """Address at which this process answers other processes, host:port; port 0 takes a free one."""

    advertise: str = ""
    """Address by which other processes reach this one, host or host:port; empty is `address`."""

    tls: TlsSettings = TlsSettings()
    """Certificate, key and authority of the services, all three: each asks the others for
    theirs."""

    names: tuple[str, ...] = ()
    """Names that certificates of services may have; `*` at the end stands for any rest, and no name
    for any."""

    server_name: str = ""
    """Name in every service's certificate, where services are reached by numbers."""

    lease_s: float = LEASE_S
    """Lease on work: time after the last heartbeat until another process takes the work over."""

    tries: int = 5
    """Failures in a row after which a part of the work goes to another process of the role, if one
    lives."""

    left_s: float = 60.0
    """First pause before this process claims such a part again; doubled by each further failure."""

    left_s_max: float = 3_600.0
    """Longest such pause."""


class LimitSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits on input and on work. A request beyond a limit is refused, and the process goes on.

    A user is a name of the token file; without one all callers are one user.
    """

    row_bytes_max: int = ROW_BYTES_MAX
    """Longest row that may be written to a collection; an answer has room for 64 MiB."""

    plugin_load_s: float = LOAD_S
    """Longest time for loading a plugin of a view and checking its laws."""

    row_bytes: int = INCOMING_BYTES_MAX
    """Longest row that a client may push, insert or append, or that a record of a new source
    becomes. A longer record is a dead letter with its size. A source keeps the limit with which it
    was made, so that each record has one fate."""

    parquet_cells_max: int = 10_000_000_000
    """Rows times columns of one Parquet file that a source reads, as its footer says."""

    calls: int = 2_000
    """Calls over gRPC and HTTP under way, of all users."""

    calls_per_user: int = 500
    """Calls under way of one user."""

    subscriptions: int = 2_000
    """Open subscriptions of all users."""

    subscriptions_per_user: int = 500
    """Open subscriptions of one user."""

    calls_per_s: float = 2_000.0
    """Calls that a user may begin in a second; a burst may have those of two seconds."""

    bytes_per_s: float = float(32 << 20)
    """Bytes that a user with a token may send and receive in a second; a burst may be of two
    seconds. Bodies and answers beyond it wait."""

    rows_per_s: float = 50_000.0
    """Rows that a user with a token may push in a second; a burst may be of two seconds. Further
    pushes wait."""

    connections: int = 2_000
    """Open connections over gRPC; one more is closed without an answer."""

    strangers: int = 500
    """Those of them on which no call was admitted yet; one more ends the oldest."""

    stranger_s: float = 10.0
    """Longest time for a connection over gRPC until a call on it is admitted.

    A health check without a token connects again after it.
    """

    http_connections: int = 1_000
    """Open connections over HTTP; one more takes the place of one that asks for nothing, or is
    answered 503."""

    http_body_bytes: int = 16 << 20
    """Largest body of a request over HTTP; it may not be packed (`Content-Encoding`)."""

    http_bodies_bytes: int = 256 << 20
    """Bytes of all bodies that have arrived and are not answered yet."""

    http_body_s: float = 30.0
    """Longest time for a body to arrive, for a new connection to ask for anything, and for the
    headers of a request."""

    http_answer_s: float = 60.0
    """Longest time for a client to take a short answer, or the next piece of a long one; it is cut
    off then."""

    document_bytes: int = 1 << 20
    """Size of all documents that one call applies."""

    program_bytes: int = 64 << 10
    """Size of the program of a view."""

    question_bytes: int = 16 << 10
    """Size of a goal, or of what stands outside of the texts of a record."""

    record_bytes: int = 1 << 20
    """Size of a record whose reason is asked for."""

    answer_bytes: int = 256 << 20
    """Size of all rows of an answer, as columns; subscriptions are not limited by it."""

    view_bytes: int = 4 << 30
    """Memory of a view by its own count: rows, matches, columns, inputs; on Spark on this machine,
    of a range of a window. Beyond it the view is `Exhausted` and tried again later; other views go
    on."""

    cache_bytes: int = CACHE_BYTES_MAX
    """Memory of decoded rows that are kept for further reads, those just written among them. The
    ones that followers have passed make room first, then those that were not read for longest."""

    history_bytes: int = 16 << 30
    """Memory, by the same count, of a job that evaluates the history of a view, with all changes of
    its inputs at once. A range of a window in pods may have as much. Beyond it the view is
    `Exhausted`."""

    question_memory_bytes: int = 1 << 30
    """Memory, by the same count, of a question that is being answered; a question beyond it is
    refused."""

    question_s: float = 60.0
    """Longest search for a reason or an analysis; it ends sooner when its caller goes away."""

    question_offsets: int = 20_000
    """Ranges of partitions with offsets in one question for their instant (`translate`)."""

    push_rows_known: int = 10_000
    """Rows of a push with a token, and last rows of a partition of a pushed source for which a
    repeated token is recognised."""

    push_rows: int = 1_000_000
    """Rows of one push."""

    capabilities: int = 4_000
    """Leased capabilities of one collection, sessions of readers among them; clients are refused
    further ones until some are dropped or end."""

    lease_ms: int = 7 * 86_400_000
    """Longest lease of a client's capability, and the lease of a client that states none. A longer
    need renews it by use, or declares a Hold."""

    @property
    def of_documents(self) -> DocumentLimits:
        """Those of what is applied."""
        return DocumentLimits(self.document_bytes, self.program_bytes)

    def of_calls(self, named: bool) -> CallLimits:
        """Those of calls, as a port counts them; a user without a name sends as fast as it can."""
        return CallLimits(
            self.calls, self.calls_per_user, self.subscriptions, self.subscriptions_per_user,
            self.calls_per_s, self.bytes_per_s if named else inf, self.connections,
            self.rows_per_s if named else inf, self.strangers, self.stranger_s,
        )  # fmt: skip

    @property
    def of_http(self) -> HttpLimits:
        """Those of the HTTP server."""
        return HttpLimits(
            self.http_body_bytes, self.http_bodies_bytes, self.http_body_s, self.http_answer_s,
            self.http_connections,
        )  # fmt: skip


class AuditSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Size and pace of the collection `tidemill/audit`: changes and refusals, with their users."""

    interval_s: float = 1.0
    """Time between two writes; equal entries of one interval become one row."""

    idle_s: float = 5.0
    """Lag of the collection's upper behind the clock while nothing happens."""

    keep_s: float = 30 * 86_400.0
    """Age up to which rows are kept and can be read."""

    rows_max: int = 200_000
    """Rows that are kept; the oldest go first."""

    entries_max: int = 1_000
    """Different entries of one interval; further ones are counted by action and outcome alone."""

    refusals_max: int = 100
    """Different refusals of one interval, likewise: a refused caller chooses their text."""

    refused_rows_max: int = 50_000
    """Rows of refusals that are kept, so that refusals do not push out changes."""


class CatalogSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """History of the catalog; each change of a resource adds two rows with its document to it.

    The setting of processes with the role query counts, which answer about the past.
    """

    keep_s: float = 7 * 86_400.0
    """Age, counted from the last change, up to which definitions can be read as of an instant."""


class ProcessSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One process: its folder, ports, stores, roles and limits."""

    directory: str = "./.tidemill"
    """Folder of this process alone: addresses, logs of jobs; without roles, all state as well."""

    role: tuple[str, ...] = ()
    """Roles of this process: ingest, remap, reclock, compute, compaction, query. Empty is all of
    them, alone."""

    without: tuple[str, ...] = ()
    """Resources that this process leaves out, as KIND/NAME: their holds stay, and none of their
    work runs."""

    name: str = ""
    """Name of this process among those that share its stores, the same after a restart. Empty is
    the host's name."""

    grpc: str = "127.0.0.1:7474"
    """Address for clients; port 0 takes a free one. Only a process with the role query answers
    there."""

    reflection: bool = False
    """Answer questions for the list of calls, as grpcurl asks them."""

    tls: TlsSettings = TlsSettings()
    """Certificate and key for clients; with an authority, clients need a certificate as well."""

    token_file: str = ""
    """File of users: hashes of tokens, and grants (docs/how-to/security.md). It needs `tls`; empty
    asks no caller for a token."""

    token_grace_s: float = GRACE_S
    """Time for which the last users count while `token_file` cannot be read or is wrong; later all
    are refused."""

    insecure: bool = False
    """Answer beyond loopback without asking for tokens; log, health and metrics then say so."""

    log: str = ""
    """Log for pushed rows and for topics without a bootstrap: kafka:HOST:PORT,…; empty is a log in
    the directory."""

    http_host: str = "127.0.0.1"
    """Host at which /metrics, /healthz, /readyz and pushed rows are served."""

    http_port: int = 7475
    """Port at `http_host`; 0 takes a free one."""

    http_names: tuple[str, ...] = ()
    """Names of the HTTP server beside localhost; without tokens, requests by other names are
    refused."""

    http_tls: TlsSettings = TlsSettings()
    """Certificate and key of the HTTP port; with an authority, scrapes and probes need a
    certificate."""

    topic_partitions: int = 1
    """Partitions of a topic that a source names and that the own log has to create."""

    retry_s_min: float = 0.5
    """First pause before a resource starts again whose store or log was away; doubled by each
    failure."""

    retry_s_max: float = 30.0
    """Longest such pause; work that goes well for longer begins with the shortest one again."""

    broken_s_max: float = 300.0
    """Longest pause before a resource is tried again that an unforeseen error ended."""

    limits: LimitSettings = LimitSettings()

    kafka_deadline_s: float = 30.0
    """A call to a broker has failed after so long, and whoever waits for it says so."""

    log_kafka: KafkaFiles = KafkaFiles()
    """TLS and login with the brokers of `log`."""

    places: PlaceSettings = PlaceSettings()
    """Files, addresses, topics and secrets that resources may name."""

    audit: AuditSettings = AuditSettings()
    catalog: CatalogSettings = CatalogSettings()
    services: ServicesSettings = ServicesSettings()
    store: StoreSettings = StoreSettings()
    spark: SparkSettings = SparkSettings()

    @property
    def root(self) -> Path:
        """The state directory as a path."""
        return Path(self.directory)

    @property
    def embeds_log(self) -> bool:
        """Whether pushed rows go to a log in the state directory."""
        return not self.log and not self.role

    @property
    def name_of_process(self) -> str:
        """The name of this process: the given one, or that of its pod or host."""
        return self.name or os.environ.get("HOSTNAME") or os.uname().nodename

    @property
    def consensus_address(self) -> str:
        """The address of Consensus. Raises: UsageError for a password that is no file's."""
        address = self.store.consensus or f"sqlite:{self.root.resolve() / 'consensus.sqlite'}"
        url = urlsplit(address)
        if url.password:
            raise UsageError(
                "a password stands in store.consensus: put it into a file and name that in "
                "store.password_file",
                reason="secret",
            )
        if any(name.startswith("ssl_") for name, _ in parse_qsl(url.query, keep_blank_values=True)):
            raise UsageError(
                "store.consensus says something of TLS behind its ?: certificates are always checked",
                reason="tls",
            )
        if not self.store.password_file:
            return address
        user = url.username or ""
        password = quote(_secret(self.store.password_file), safe="")
        place = url.netloc.rpartition("@")[2]
        return url._replace(netloc=f"{user}:{password}@{place}").geturl()

    @property
    def blob_place(self) -> BlobPlace:
        """The place of Blob."""
        address = self.store.blob or f"file:{self.root.resolve() / 'blob'}"
        file = self.store.secret_key_file
        return BlobPlace(address, self.store.access_key, _secret(file) if file else "")


def _secret(file: str) -> str:
    """The contents of a file. Raises: UsageError, which says the name of the file alone."""
    try:
        text = Path(file).read_text().strip()
    except OSError as error:
        raise UsageError(
            f"the file of a secret {file} cannot be read: {error.strerror}", reason="secret"
        ) from error
    if not text:
        raise UsageError(f"the file of a secret {file} is empty", reason="secret")
    return text
