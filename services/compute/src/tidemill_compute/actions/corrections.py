"""Corrections of events after they fired: withdrawn, changed, or back again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from tidemill.arrangement.updates import DIFF, TIME, update_schema
from tidemill.catalog.record_rows import PredicateShape
from tidemill.catalog.schemas import corrections_schema
from tidemill.datalog.records import Record, format_record, format_value


@dataclass(frozen=True, slots=True)
class Correction:
    """The `sequence`-th time that the event under `key` is not what it was; None is absence."""

    key: str
    sequence: int
    instant: int
    old: Record | None
    new: Record | None


def correction_rows(corrections: Sequence[Correction], shape: PredicateShape) -> pa.Table:
    """The corrections as updates at their instants."""
    schema = corrections_schema(shape)
    rows = []
    for each in corrections:
        of = each.new or each.old
        assert of is not None
        texts = (None if r is None else format_record(r) for r in (each.old, each.new))
        values = (each.key, each.sequence, each.instant, of.time, *texts, *_plain(of))
        row = dict(zip(schema.names, values, strict=True))
        rows.append({**row, TIME: each.instant, DIFF: 1})
    return pa.Table.from_pylist(rows, update_schema(schema))


def changed_after_firing(
    key: str, instant: int, old: Record | None, new: Record | None, told: Counter[str]
) -> Iterator[Correction]:
    """The correction that a change of a fired event is; none if it ends as it said it would.

    `told` counts the corrections of each key.
    """
    if old == new or (new is None and old is not None and _ended(old, instant)):
        return
    told[key] += 1
    yield Correction(key, told[key], instant, old, new)


def _ended(record: Record, instant: int) -> bool:
    return record.expires is not None and record.expires <= instant


def _plain(record: Record) -> Iterator[object]:
    """Arguments as columns hold them: sets in their text form."""
    for value in record.arguments:
        yield format_value(value) if isinstance(value, frozenset) else value
