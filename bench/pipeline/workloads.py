"""Workloads: records, the documents that are applied, and the answers of both sides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from bench.pipeline import records

RESOURCES = Path(__file__).parent / "resources"
SKEW_MS = 1_000
CLOCK_MS = 1_000
"""Beyond the skew, what a view of windows waits for at most."""


@dataclass(frozen=True)
class Answers:
    """The columns of the answers that are compared, each with its name on our side and on Flink's.

    `time` is the column by which answers beyond the common end are left out.
    """

    columns: tuple[tuple[str, str, str], ...]
    time: str

    def ours(self, rows: pa.Table, first: int, end: int) -> pa.Table:
        """Our answers of [first, end), in order."""
        named = {name: rows.column(ours) for name, ours, _ in self.columns}
        return self._ordered(pa.table(named), first, end)

    def theirs(self, folder: Path, first: int, end: int) -> pa.Table:
        """The answers that Flink wrote, likewise."""
        names = [theirs for *_, theirs in self.columns]
        options = pyarrow.csv.ReadOptions(column_names=names)
        files = [f for f in folder.rglob("*") if f.is_file() and not f.name.startswith(".")]
        parts = [pyarrow.csv.read_csv(f, options) for f in files if f.stat().st_size]
        rows = pa.concat_tables(parts)
        named = {name: rows.column(theirs) for name, _, theirs in self.columns}
        if "w" in names:  # the last millisecond of a window, where we say its first
            last = rows.column("w").cast(pa.timestamp("ms")).cast(pa.int64())
            named[self.time] = pc.subtract(last, CLOCK_MS - 1)
        return self._ordered(pa.table(named), first, end)

    def _ordered(self, rows: pa.Table, first: int, end: int) -> pa.Table:
        time = rows.column(self.time)
        inside = pc.and_(pc.greater_equal(time, first), pc.less(time, end))
        return rows.filter(inside).sort_by([(name, "ascending") for name, *_ in self.columns])


@dataclass(frozen=True)
class Workload:
    """A backlog of records through a source, and through a view if there is one.

    `rows` are the answers themselves, where no peer gives them.
    """

    records: str
    source: str
    answers: Answers
    view: str | None = None
    document: str = ""
    rows: Callable[[int], pa.Table] | None = None

    @property
    def topics(self) -> int:
        return len(records.TOPICS[self.records])


def _same(*names: str) -> tuple[tuple[str, str, str], ...]:
    return tuple((name, name, name) for name in names)


HOT = Answers(_same("tank", "level", "at"), "at")
RESAMPLE = Answers(
    (("tank", "tank", "tank"), ("at", "time", "w"), ("mean", "average", "mean"), ("flow", "sum", "flow")), "at"
)  # fmt: skip
JOIN = Answers((*_same("payment", "order", "amount"), ("at", "time", "at")), "at")


UNPAID = Answers((("order", "order", "order"), ("at", "time", "at")), "at")
EXTREMES = Answers(
    (("tank", "tank", "tank"), ("at", "time", "at"), *_same("max", "min", "sum")), "at"
)


def _wide(n: int) -> pa.Table:
    return records.table(records.wide_rows(n))


def _stock(n: int) -> pa.Table:
    return records.table(records.stock_rows(n))


def _unpaid(n: int) -> pa.Table:
    return records.table(records.unpaid_rows(n, after_ms=2_000, kept_ms=10_000))


def _extremes(n: int) -> pa.Table:
    return records.table(records.extreme_rows(n, window_ms=1_000))


WORKLOADS = {
    "hot": Workload("readings", "readings", HOT, "hot/hot"),
    "resample": Workload("readings", "readings", RESAMPLE, "resample/mean"),
    "join": Workload("orders", "payments", JOIN, "join/paid"),
    "unpaid": Workload("orders", "payments", UNPAID, "unpaid/unpaid", rows=_unpaid),
    "extremes": Workload("readings", "readings", EXTREMES, "extremes/extremes", rows=_extremes),
    "keyed": Workload(
        "stock", "stock", Answers(_same("article", "pieces", "place"), "place"), rows=_stock
    ),
    "avro": Workload("avro", "wide", Answers(_same(*records.WIDE), "number"), rows=_wide),
    "protobuf": Workload("protobuf", "wide", Answers(_same(*records.WIDE), "number"), rows=_wide),
}
