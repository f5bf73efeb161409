"""Resources and collections as lists."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from rich.text import Text

from tidemill.client.instants import short_frontier, shown, shown_duration, shown_frontier
from tidemill.client.rendering import cell, console, grid
from tidemill.rpc.messages import (
    CollectionInfo,
    HolderInfo,
    ResourceStatus,
    TimestampExplanation,
    Translation,
)
from tidemill.time import Frontier, partition_offsets, shown_offsets

PROGRESS = ("RATE", "BEHIND", "LEFT")
"""Columns that are shown while a source or view is behind: records per second, records, time."""
RESOURCES = ("KIND", "NAME", "READY", "SINCE", "UPPER", "LAG", *PROGRESS, "AGE", "REASON")
NO_RECORDS = "NoRecords"
"""Reason of a source whose log has never had a record; its message says which log."""
AS_OF = "AsOf"
"""Reason of a definition of the past, of which nothing else is known."""
COLLECTIONS = (
    "COLLECTION", "KIND", "TIMELINE", "SINCE", "UPPER", "LAG", "UPDATES", "HELD BY", "WRITTEN BY",
)  # fmt: skip


def print_resources(found: Sequence[ResourceStatus], *, wide: bool) -> None:
    """A line per resource; what is not ready stands out and says why."""
    if not found:
        console().print("nothing here yet: `tidemill apply -f FILE` creates resources")
        return
    behind = wide or any(status.records_behind for status in found)
    columns = [name for name in RESOURCES if behind or name not in PROGRESS]
    right = ("LAG", *PROGRESS, "AGE")
    table = grid((*columns, *(("MESSAGE",) if wide else ())), right=right)
    frontier = shown_frontier if wide else short_frontier
    for status in found:
        cells = [
            Text(status.kind),
            Text(status.name, style="bold"),
            _ready(status),
            Text(frontier(status.since)),
            Text("-" if _is_unmoved(status) else frontier(status.upper)),
            Text(shown_duration(status.lag_ms)),
            *(Text(cell) for cell in _progress(status) if behind),
            Text(shown_duration(status.age_ms)),
            Text(status.message if status.reason == NO_RECORDS and not wide else status.reason),
        ]
        if wide:
            cells.append(Text(status.message))
        table.add_row(*cells)
    console().print(table)


def print_next(following: str | None, limit: int | None) -> None:
    """Say how the next page is asked for, on standard error; a pipe gets the list alone."""
    if following is not None:
        told = f"more follow: --limit {limit} --after '{following}'"
        print(told, file=sys.stderr)


def _ready(status: ResourceStatus) -> Text:
    if status.reason == AS_OF:
        return Text("-")
    return Text("yes", style="green") if status.ready else Text("no", style="yellow")


def _progress(status: ResourceStatus) -> tuple[str, str, str]:
    """Records per second, records that are behind, and the time left; dashes for none."""
    if status.records_per_s is None or status.records_behind is None:
        return "-", "-", "-"
    left = shown_duration(status.left_ms)
    return f"{status.records_per_s:,.0f}/s", f"{status.records_behind:,}", left


def _is_unmoved(status: ResourceStatus) -> bool:
    """Whether upper stands at the beginning for want of records."""
    upper = status.upper
    return status.reason == NO_RECORDS and upper is not None and [*upper] in ([0], [1])


def print_resources_json(found: Sequence[ResourceStatus]) -> None:
    """An array with an object per resource; frontiers as arrays."""
    print(json.dumps([_resource(status) for status in found], ensure_ascii=False))


def print_description(status: ResourceStatus) -> None:
    """Everything about one resource."""
    out = console()
    past = status.reason == AS_OF
    state = "ready" if status.ready else "not ready"
    reason = f": {status.reason}" if status.reason else ""
    says = "" if past else f"{state}{reason}"
    out.print(Text(f"{status.kind} {status.name}", style="bold"), Text(says))
    if status.message:
        out.print(Text(status.message))
    table = grid(("", ""))
    table.show_header = False
    if not past:
        table.add_row("since", Text(shown_frontier(status.since)))
        table.add_row("upper", Text("-" if _is_unmoved(status) else shown_frontier(status.upper)))
        table.add_row("lag", shown_duration(status.lag_ms))
    if status.records_behind is not None:
        for name, shown in zip(PROGRESS, _progress(status), strict=True):
            table.add_row(name.lower(), Text(shown))
    table.add_row("age", shown_duration(status.age_ms))
    for name, value in status.details.items():
        lines = value if isinstance(value, list) else [value]
        for number, line in enumerate(lines):
            table.add_row(Text("" if number else name), Text(cell(line)))
    out.print(table)
    if status.document_yaml:
        out.print()
        out.print(Text(status.document_yaml.rstrip()))


def print_collections(found: Sequence[CollectionInfo], as_json: bool) -> None:
    """A line per collection."""
    if as_json:
        print(json.dumps([_collection(info) for info in found], ensure_ascii=False))
        return
    table = grid(COLLECTIONS, right=("LAG", "UPDATES"))
    for info in found:
        cells = (
            info.id, info.kind, info.timeline, shown_frontier(info.since),
            shown_frontier(info.upper), shown_duration(info.lag_ms), str(info.updates),
            _owners(info.holders), _owners(info.writers),
        )  # fmt: skip
        table.add_row(*(Text(text) for text in cells))
    console().print(table)


def _owners(holders: Sequence[HolderInfo]) -> str:
    return ", ".join(sorted({holder.owner or "(unnamed)" for holder in holders}))


HOLDERS = ("COLLECTION", "SINCE", "UPPER", "HOLDS", "AT", "OWNER", "KEY")


def print_timestamp(found: TimestampExplanation) -> None:
    """The instant and its reason, then a line for each collection and each of its holders."""
    out = console()
    out.print(Text(f"{'none' if found.chosen is None else found.chosen}: {found.reason}"))
    table = grid(HOLDERS)
    for _, info in found.inputs:
        frontiers = info.id, shown_frontier(info.since), shown_frontier(info.upper)
        table.add_row(*(Text(text) for text in (*frontiers, "", "", "", "")))
        for right, holders in (("since", info.holders), ("upper", info.writers)):
            for holder in holders:
                said = (
                    right,
                    shown_frontier(holder.frontier),
                    holder.owner or "(unnamed)",
                    holder.key,
                )
                table.add_row(*(Text(text) for text in ("", "", "", *said)))
    out.print(table)


def print_translation(source: str, found: Translation, as_json: bool) -> None:
    """The instant, and the offsets before which its answer has every record."""
    if as_json:
        offsets = {str(p): at for p, at in sorted(partition_offsets(found.offsets).items())}
        fields = {"source": source, "as_of": found.as_of, "timeline": found.timeline,
                  "bound_at": found.bound_at, "offsets": offsets,
                  "since": _times(found.since), "upper": _times(found.upper)}  # fmt: skip
        print(json.dumps(fields, ensure_ascii=False))
        return
    out = console()
    out.print(Text(f"{source} as of {shown(found.as_of)}: {shown_offsets(found.offsets)}"))
    if found.timeline != "system":
        out.print(Text(f"{found.as_of} is of {found.timeline}; bound at {shown(found.bound_at)}"))


def _times(held: Frontier | None) -> list[int] | None:
    return None if held is None else list(held)


def _resource(status: ResourceStatus) -> dict[str, object]:
    return {
        "kind": status.kind,
        "name": status.name,
        "ready": status.ready,
        "reason": status.reason,
        "message": status.message,
        "since": _times(status.since),
        "upper": _times(status.upper),
        "lag_ms": status.lag_ms,
        "age_ms": status.age_ms,
        "details": dict(status.details),
        "records_per_s": status.records_per_s,
        "records_behind": status.records_behind,
        "left_ms": status.left_ms,
    }


def _collection(info: CollectionInfo) -> dict[str, object]:
    return {
        "id": info.id,
        "kind": info.kind,
        "timeline": info.timeline,
        "since": _times(info.since),
        "upper": _times(info.upper),
        "lag_ms": info.lag_ms,
        "updates": info.updates,
        "batches": info.batches,
        "bytes": info.bytes,
        "holders": [_holder(holder) for holder in info.holders],
        "writers": [_holder(writer) for writer in info.writers],
        "columns": [asdict(column) for column in info.columns],
    }


def _holder(holder: HolderInfo) -> dict[str, object]:
    """A holder of a frontier: its instant, its begin and its end; no end means for ever."""
    return {
        "owner": holder.owner,
        "frontier": _times(holder.frontier),
        "since_ms": holder.since_ms,
        "moved_ms": holder.moved_ms,
        "lease_end_ms": holder.lease_end_ms,
        "key": holder.key,
    }
