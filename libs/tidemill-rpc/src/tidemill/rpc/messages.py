"""Messages in domain types: no generated class is seen outside this package.

Tables are Arrow tables. An answer has the data columns and `_diff`, the multiplicity of the row;
changes have the data columns, `_time` and `_diff`. Times are u64 milliseconds of a timeline.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

import pyarrow as pa

from tidemill.time import Frontier, SourceFrontier

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
"""A value that a trip through JSON leaves unchanged."""


# Reading.


@dataclass(frozen=True, slots=True)
class Answer:
    """The exact contents of one collection or goal at `as_of`, where since ≤ as_of < upper.

    It is an Arrow stream of its rows: pyarrow, polars and DuckDB take it as it is.
    """

    table: pa.Table
    as_of: int
    since: Frontier
    upper: Frontier
    collection: str

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The rows, by the PyCapsule interface of Arrow; nothing is copied."""
        return self.table.__arrow_c_stream__(requested_schema)


@dataclass(frozen=True, slots=True)
class Changes:
    """Updates of a subscription, with their times; those of a snapshot all carry its time."""

    table: pa.Table


@dataclass(frozen=True, slots=True)
class Progress:
    """Everything before `upper` has been sent; an empty frontier means nothing more will come."""

    upper: Frontier


Event: TypeAlias = "Changes | Progress"


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a record is, or is not, present: text for people, a tree for programs.

    A node of the tree is an object with `fact`, `rule` and `children`, and keys of its own kind.
    """

    text: str
    tree: Json = None


@dataclass(frozen=True, slots=True)
class HolderInfo:
    """Holder of since or upper, the frontier held, and the end of its lease (None: never).

    It holds something since `since_ms`, and this frontier since `moved_ms`. `key` is its name for
    an administrator who ends it; it gives no right.
    """

    owner: str
    frontier: Frontier
    lease_end_ms: int | None = None
    key: str = ""
    moved_ms: int = 0
    since_ms: int = 0


@dataclass(frozen=True, slots=True)
class ColumnInfo:
    """One data column; `type` is the name of its Arrow type."""

    name: str
    type: str
    nullable: bool = True


@dataclass(frozen=True, slots=True)
class CollectionInfo:
    """A collection as its readers see it; `lag_ms` is None where no clock measures the timeline.

    `holders` hold since, `writers` upper. `moved_by` is who or what let since come where it is.
    """

    id: str
    kind: str
    timeline: str
    since: Frontier
    upper: Frontier
    lag_ms: int | None = None
    holders: tuple[HolderInfo, ...] = ()
    updates: int = 0
    batches: int = 0
    bytes: int = 0
    columns: tuple[ColumnInfo, ...] = ()
    writers: tuple[HolderInfo, ...] = ()
    moved_by: str = ""


@dataclass(frozen=True, slots=True)
class TimestampExplanation:
    """Which instant a question gets (None: none is definite, or not the one asked for), and why.

    `inputs` are what it reads, by the name by which they were asked for.
    """

    chosen: int | None
    reason: str
    inputs: tuple[tuple[str, CollectionInfo], ...]


@dataclass(frozen=True, slots=True)
class Translation:
    """Offsets behind a source's answer as of an instant: it holds exactly the records before them.

    They were bound at `bound_at`, by the clock of the system; `timeline` is that of `as_of`.
    """

    as_of: int
    timeline: str
    bound_at: int
    offsets: SourceFrontier
    since: Frontier
    upper: Frontier


# The catalog.


@dataclass(frozen=True, slots=True)
class ResourceDocument:
    """YAML text with one or more documents; `file` is the name that its errors carry."""

    text: str
    file: str


class Outcome(Enum):
    """Effect of an apply on one resource."""

    CREATED = "created"
    CONFIGURED = "configured"
    UNCHANGED = "unchanged"


class Decision(Enum):
    """Decision on the waiting version of a view: it takes over, or is given up."""

    APPROVE = "approve"
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class Applied:
    """One resource of an apply and what became of it."""

    kind: str
    name: str
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class ResourceStatus:
    """A resource and how it does; frontiers and durations are None where they have no meaning."""

    kind: str
    name: str
    ready: bool
    reason: str = ""
    message: str = ""
    since: Frontier | None = None
    upper: Frontier | None = None
    lag_ms: int | None = None
    age_ms: int | None = None
    document_yaml: str = ""
    details: Mapping[str, Json] = field(default_factory=dict)
    records_per_s: float | None = None
    """Records that a source writes, or changes that a view takes in, per second."""
    records_behind: int | None = None
    """About how many of them are known and not there yet."""
    left_ms: int | None = None
    """Estimated time until none is behind; None where the end comes no nearer."""

    @property
    def key(self) -> str:
        """The key in lists."""
        return f"{self.kind}/{self.name}"


INSERT_VALUES_BYTES_MAX = 256 << 20
"""Bytes of the rows of one insert as columns, eight for each value and each multiplicity.

A null, or a column that is left out, takes none in a message.
"""


def rows_of_insert(columns: int) -> int:
    """The most rows of one insert into a table of so many columns."""
    return INSERT_VALUES_BYTES_MAX // (8 * (columns + 1))


@dataclass(frozen=True, slots=True)
class Inserted:
    """The rows are durable and present from `time` on."""

    time: int
    rows: int


@dataclass(frozen=True, slots=True)
class Pushed:
    """So many rows are in the log; they appear in the source once their offsets are bound."""

    accepted: int


# Storage.


@dataclass(frozen=True, slots=True)
class CollectionShape:
    """Specification of a new collection: its data columns and the promises about them."""

    schema: pa.Schema
    kind: str = "table"
    timeline: str = "system"
    key: tuple[str, ...] = ()
    retain_ms: int | None = None
    """Distance at which since follows upper, whatever readers do; None keeps the whole history."""

    allow_negative: bool = False
    user_writable: bool = False


class Right(Enum):
    """Right of a capability: to read or to write."""

    READ = "read"
    WRITE = "write"


@dataclass(frozen=True, slots=True)
class HeldCapability:
    """A right on a collection, held at `frontier`. The id is a secret: it never prints."""

    id: str = field(repr=False)
    collection: str
    frontier: Frontier
    right: Right


@dataclass(frozen=True, slots=True)
class HeldVersion:
    """A version whose objects stay while its capability lives, held at the instant `at`.

    `version` is in the format of the state log.
    """

    capability: HeldCapability
    at: int
    version: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class MaintainedView:
    """A program over held inputs, by predicate, that is to be maintained under a name.

    `at` is the first instant of its outputs, None the first one of all inputs. No `outputs` stand
    for all derived predicates. A retention of None keeps everything; a lease of None is the longest
    there is. `into` are the write capabilities of outputs that exist.
    """

    name: str
    program: str
    inputs: Mapping[str, HeldCapability]
    at: Frontier | None = None
    outputs: tuple[str, ...] = ()
    retain_ms: int | None = None
    owner: str = ""
    lease_ms: int | None = None
    into: Mapping[str, HeldCapability] = field(default_factory=dict)


class Comparison(Enum):
    """Relation of a column to a value; null equals null alone, and is neither less nor greater."""

    EQUAL = "=="
    NOT_EQUAL = "!="
    LESS = "<"
    LESS_OR_EQUAL = "<="
    GREATER = ">"
    GREATER_OR_EQUAL = ">="


@dataclass(frozen=True, slots=True)
class Condition:
    """Rows whose column stands so to the value: a number, a text, a truth or null."""

    column: str
    comparison: Comparison
    value: Json


@dataclass(frozen=True, slots=True)
class CapabilityPair:
    """Result of create and acquire; no writer for a collection that users cannot write."""

    read: HeldCapability
    write: HeldCapability | None


@dataclass(frozen=True, slots=True)
class Appended:
    """The updates are durable; also the answer to a retry whose token is already known."""

    upper: Frontier


@dataclass(frozen=True, slots=True)
class UpperMismatch:
    """The race was lost and nothing was written: re-read, recompute, retry at `current`."""

    current: Frontier


AppendOutcome: TypeAlias = "Appended | UpperMismatch"


# Between services.


@dataclass(frozen=True, slots=True)
class Delivered:
    """Decoded rows and dead letters of a source; everything below `positions` came with it or
    before.
    """

    rows: pa.Table
    letters: pa.Table
    positions: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Work:
    """One role's part of one resource, as the process that holds it sees it."""

    role: str
    kind: str
    name: str
    ready: bool
    reason: str
    message: str
    details: Mapping[str, Json]
    process: str
    epoch: int
