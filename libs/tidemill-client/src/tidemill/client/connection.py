"""A connection to Tidemill: each verb of the command as a method, answers as Arrow tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow as pa

from tidemill.client.handles import Handles
from tidemill.client.instants import instant
from tidemill.client.manifests import documents_in
from tidemill.client.multiplicity import plain_rows, shown_rows
from tidemill.client.rows import table_of
from tidemill.client.settings import ServerAccess, place_from_environment
from tidemill.client.showing import ShownAnswer, ShownExplanation, html_of
from tidemill.errors import UsageError
from tidemill.rpc.blocking import BlockingClient
from tidemill.rpc.channel import IN_THE_CLEAR, Dialer
from tidemill.rpc.messages import (
    Answer,
    Applied,
    CollectionInfo,
    Decision,
    Event,
    Explanation,
    HolderInfo,
    Inserted,
    Pushed,
    ResourceDocument,
    ResourceStatus,
    TimestampExplanation,
    Translation,
)
from tidemill.rpc.outcomes import CALL_S
from tidemill.rpc.paging import Listed, page_of
from tidemill.rpc.tls import TlsFiles
from tidemill.runtime.addresses import refuse_no_address
from tidemill.time import Frontier, heartbeat, partition_frontier, read_offsets

SYSTEM_AUTHORITIES = "system"
"""Value of `tls_ca` for the authorities that this machine trusts."""

Instant = int | str | datetime | None
"""Milliseconds, ISO-8601 text, a datetime (naive: UTC), or None for the latest definite one."""


@dataclass(frozen=True, slots=True)
class SqlAnswer:
    """Answer of a SELECT over `collections`, all at `as_of`; None if it named no collection."""

    table: pa.Table
    as_of: int | None
    collections: Mapping[str, tuple[Frontier, Frontier]]
    """Since and upper of each collection read."""

    def _repr_html_(self) -> str:
        return html_of(self.table, self.as_of, self.collections)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The rows, by the PyCapsule interface of Arrow; nothing is copied."""
        return self.table.__arrow_c_stream__(requested_schema)


class Client(Handles):
    """A server's verbs. Every method raises the errors of `tidemill.errors`."""

    def __init__(
        self, address: str, *, timeout_s: float = CALL_S, dialer: Dialer = IN_THE_CLEAR
    ) -> None:
        self.address = address
        self._calls = BlockingClient(address, timeout_s=timeout_s, dialer=dialer)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End running calls and the connection."""
        self._calls.close()

    def query(self, goal: str, as_of: Instant = None, *, timeout_s: float | None = None) -> Answer:
        """Matches of a goal such as `late(f, d)`, or a whole collection such as `delays/late`.

        The table has plain rows; it keeps `_diff` only where some multiplicity is negative, or
        copies are more than ten million. An instant that is not definite yet is waited for up to
        `timeout_s`.
        """
        ask = self._calls.ask if "(" in goal else self._calls.snapshot
        answer = ask(goal, instant(as_of), timeout_s)
        rows = shown_rows(answer.table)
        return ShownAnswer(rows, answer.as_of, answer.since, answer.upper, answer.collection)

    def sql(
        self,
        select: str,
        as_of: Instant = None,
        *,
        timeout_s: float | None = None,
        memory: str = "4GB",
    ) -> SqlAnswer:
        """A SELECT over exactly the collections it names, all at one instant.

        `delays.late` and `"delays/late"` name the same collection. Raises: Exhausted where DuckDB
        wants more than `memory`; UsageError where it is not installed.
        """
        # DuckDB is loaded by those who use it.
        try:
            from tidemill.client import sql
        except ModuleNotFoundError as error:
            raise UsageError(
                f"{error.name} is not installed: pip install 'tidemill[sql]'", reason="sql"
            ) from error

        names = sql.tables_named(select)
        found: Mapping[str, Answer] = {}
        if names:
            asked = list(dict.fromkeys(name.collection for name in names))
            found = self._calls.tables(asked, instant(as_of), timeout_s)
        tables = {name: plain_rows(found[name.collection].table) for name in names}
        return SqlAnswer(
            table=sql.select(select, tables, memory),
            as_of=next((answer.as_of for answer in found.values()), None),
            collections={name: (a.since, a.upper) for name, a in found.items()},
        )

    def subscribe(
        self,
        goal: str,
        start: Instant = None,
        *,
        snapshot: bool = True,
        until: Instant = None,
    ) -> Iterator[Event]:
        """Changes of a goal or collection, and progress; closing the iterator ends it."""
        return self._calls.subscribe(goal, instant(start), snapshot, instant(until))

    def why(self, record: str, as_of: Instant = None) -> Explanation:
        """The proof of a record that is present, down to the inputs."""
        found = self._calls.why(record, instant(as_of))
        return ShownExplanation(found.text, found.tree)

    def why_not(self, record: str, as_of: Instant = None) -> Explanation:
        """For each rule that could derive the record, what stopped it."""
        found = self._calls.why_not(record, instant(as_of))
        return ShownExplanation(found.text, found.tree)

    def explain(self, view: str, form: str = "plan") -> str:
        """A view as `plan`, `analyze` (with rows, bytes and time), `json`, `analyze-json`, `dot` or
        `svg` (its strata).
        """
        return self._calls.explain(view, form)

    def explain_timestamp(self, *names: str, as_of: Instant = None) -> TimestampExplanation:
        """Which instant a question over collections, goals or views gets, and who holds it where it
        is.
        """
        return self._calls.explain_timestamp(names, instant(as_of))

    def offsets(
        self, source: str, as_of: Instant = None, *, timeout_s: float | None = None
    ) -> Translation:
        """Offsets behind the answer of a source: it holds all records before them, and no others.

        An instant that is not definite yet is waited for up to `timeout_s`.
        """
        return self._calls.translate(source, instant(as_of), timeout_s)

    def since_when(
        self,
        source: str,
        offsets: Mapping[int, int] | str,
        *,
        timeout_s: float | None = None,
    ) -> Translation:
        """The least instant whose answer is made of all records before these offsets, by partition.

        A record is one before the offset behind it. `offsets` may be written as `p0=17,p1=4`.
        Raises: NotYet, once `timeout_s` is over, with how far the source is; BeforeSince for what
        was in before since.
        """
        wanted = read_offsets(offsets) if isinstance(offsets, str) else offsets
        return self._calls.translate(source, partition_frontier(wanted), timeout_s)

    def expire(self, collection: str, key: str) -> HolderInfo:
        """End the capability of the holder with this key, for administrators; who it was."""
        return self._calls.expire(collection, key)

    def collections(
        self, *, limit: int | None = None, after: str | None = None
    ) -> Listed[CollectionInfo]:
        """Every collection with its frontiers and who holds them, in the order of their names.

        With `limit` at most so many behind the name `after`; `next` of the answer begins the page
        behind them, and is None if nothing follows.
        """
        return self._calls.collections(page_of(limit, after))

    def apply(self, *sources: str | Path | ResourceDocument) -> Sequence[Applied]:
        """Make the resources of files, folders or documents so, or none of them."""
        documents: list[ResourceDocument] = []
        for source in sources:
            if isinstance(source, ResourceDocument):
                documents.append(source)
            else:
                documents += documents_in(Path(source))
        return self._calls.apply(documents)

    def get(
        self,
        kind: str | None = None,
        name: str | None = None,
        as_of: Instant = None,
        *,
        limit: int | None = None,
        after: str | None = None,
    ) -> Listed[ResourceStatus]:
        """Resources of a kind and name; None stands for all. As of an instant their definitions.

        With `limit` at most so many behind the resource `after` (KIND/NAME), in that order, as
        `collections` does.
        """
        return self._calls.get(kind, name, instant(as_of), page_of(limit, after))

    def describe(self, kind: str, name: str, as_of: Instant = None) -> ResourceStatus:
        """One resource with its details; as of an instant its definition.

        Raises: BeforeSince where definitions of then are not kept any more.
        """
        return self._calls.describe(kind, name, instant(as_of))

    def delete(self, kind: str, name: str) -> None:
        """Remove a resource that nothing else reads."""
        self._calls.delete(kind, name)

    def approve(self, view: str, version: int | None = None) -> int:
        """Approve the waiting version of a view; its number. Raises: UsageError."""
        return self._calls.decide(view, Decision.APPROVE, version)

    def abort(self, view: str, version: int | None = None) -> int:
        """Give up the waiting version of a view; its number. Raises: UsageError."""
        return self._calls.decide(view, Decision.ABORT, version)

    def insert(
        self,
        table: str,
        rows: pa.Table | Sequence[Mapping[str, object]],
        *,
        token: str | None = None,
    ) -> Inserted:
        """Write rows durably to a table, all at one time; once for each token, however often it is
        called.
        """
        return self._calls.insert(table, table_of(rows), token=token)

    def push(self, source: str, rows: Iterable[bytes | str], *, token: str | None = None) -> Pushed:
        """Write raw rows to the log of a source, durable when this returns; once for each token.

        Raises: UsageError for rows that are neither text nor bytes.
        """
        sent = [r.encode() if isinstance(r, str) else r for r in rows]
        for number, each in enumerate(sent):
            if not isinstance(each, bytes):
                raise UsageError(
                    f"push refused: row {number} is of {type(each).__name__}: a row is text or bytes, "
                    "as the format of its source writes it, such as json.dumps(row)",
                    reason="row",
                )
        return self._calls.push(source, sent, token=token)

    def heartbeat(self, source: str, until: int | str | datetime) -> None:
        """Promise that no event before `until` follows, so that event time goes on without one.

        Durable when this returns. `until` is an instant as for `query`. Raises: UsageError for a
        source without event time, or one that does not take pushed rows.
        """
        ms = instant(until)
        if ms is None:
            raise UsageError(
                "a heartbeat names the instant before which nothing follows, not the latest one",
                reason="instant",
            )
        self._calls.push(source, [heartbeat(ms).encode()])


def connect(
    address: str | None = None,
    *,
    timeout_s: float = CALL_S,
    tls_ca: str | None = None,
    tls_cert: str | None = None,
    tls_key: str | None = None,
    tls_name: str | None = None,
    token_file: str | None = None,
) -> Client:
    """A client of the server at `address`, by default that of `TIDEMILL_ADDRESS`.

    `tls_ca` is a file with the authority of the server's certificate (`system`: those of this
    machine). `tls_cert` and `tls_key` are ours, for servers that ask for them. `tls_name` is the
    name in the server's certificate, if the address has another. `token_file` holds the token. Each
    defaults to `TIDEMILL_TLS_CA` and so on. Nothing is called yet: the first call of a server that
    is away raises Unavailable. Raises: UsageError for a file that cannot be used.
    """
    return connect_to(
        place_from_environment(address, tls_ca, tls_cert, tls_key, tls_name, token_file),
        timeout_s=timeout_s,
    )


def connect_to(place: ServerAccess, *, timeout_s: float = CALL_S) -> Client:
    """A client of a place. Raises: UsageError for a file that cannot be used, or for what is no
    address.
    """
    refuse_no_address("the address", place.address)
    return Client(place.address, timeout_s=timeout_s, dialer=dialer_of(place))


def dialer_of(place: ServerAccess) -> Dialer:
    """The dialer of a server. Raises: UsageError for a file that cannot be used."""

    def path(name: str) -> Path | None:
        return Path(name) if name else None

    tls = None
    if place.tls_ca or place.tls_cert or place.tls_key:
        authority = None if place.tls_ca == SYSTEM_AUTHORITIES else path(place.tls_ca)
        tls = TlsFiles(path(place.tls_cert), path(place.tls_key), authority)
    return Dialer(tls, place.tls_name, path(place.token_file)).checked()
