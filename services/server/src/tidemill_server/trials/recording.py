"""A case made of a running server: the history of a view's inputs, and its answers as of T."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidemill.catalog.entry import CatalogEntry
from tidemill.catalog.names import meant
from tidemill.client.connection import Client
from tidemill.datalog.presence import END, Instant, Presence
from tidemill.datalog.records import format_record
from tidemill.errors import UnknownCollection, UsageError
from tidemill_server.trials.answers import Rules, rules_of
from tidemill_server.trials.history import (
    all_facts,
    bases_of,
    columns_on,
    document_on,
    resources_on,
    stretch_of,
    views_below,
)
from tidemill_server.trials.row_texts import row_text


@dataclass(frozen=True, slots=True)
class Recorded:
    """Two files: the resources that a view needs, and a case."""

    resources: str
    case: str

    def write(self, view: str, folder: Path) -> list[Path]:
        """Write both files. Raises: UsageError if one is there already."""
        texts = {folder / f"{view}.yaml": self.resources, folder / f"{view}.test.yaml": self.case}
        if there := [path for path in texts if path.exists()]:
            raise UsageError(f"{there[0]} is there already: name another folder", reason="exists")
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in texts.items():
            path.write_text(text, encoding="utf-8")
        return list(texts)


def record(
    client: Client, view: str, start: int | None, at: int | None, changes_max: int
) -> Recorded:
    """The case of one view as of an instant, with all rows that are known before.

    Expected records are those that the server has. Raises: UnknownCollection, UsageError.
    """
    there = resources_on(client)
    rules = rules_of(there, columns_on(client, there))
    if view not in rules.views:
        says = f"there is no view {view}{meant(view, rules.views)}"
        raise UnknownCollection(says, name=view)
    bases = bases_of(rules, view)
    stretch = stretch_of(client, bases, start, at)
    facts = all_facts(client, rules, bases, stretch, changes_max)
    needed = {*bases, *views_below(rules, view)}
    documents = [
        document_on(status).strip()
        for status in client.get()
        if status.name in needed and status.kind in ("Source", "Table", "View")
    ]
    lines = [
        f"resources: [{view}.yaml]",
        "cases:",
        f"- name: {json.dumps(f'{view} as of {stretch.at}')}",
        "  given:",
    ]
    for name in bases:
        _, entry = rules.inputs[name]
        lines.append(f"    {name}:")
        given = _rows(entry, facts[name][name], stretch.start)
        lines += [f"    - {row_text(row)}" for row in given] or ["      []"]
    lines += ["  expect:", "    asOf:", f"      {stretch.at}:"]
    for predicate in rules.views[view].outputs:
        texts = _answers(client, rules, view, predicate, stretch.at)
        lines.append(f"        {json.dumps(f'{view}/{predicate}')}:")
        lines += [f"        - {json.dumps(text, ensure_ascii=False)}" for text in texts] or [
            "          []"
        ]
    return Recorded("\n---\n".join(documents) + "\n", "\n".join(lines) + "\n")


def _answers(client: Client, rules: Rules, view: str, predicate: str, at: int) -> Sequence[str]:
    entry = rules.views[view].outputs[predicate]
    table = client.query(f"{view}/{predicate}", at).table
    return sorted(format_record(each) for each in entry.readable().records(table))


def _rows(
    entry: CatalogEntry, presences: Sequence[Presence], start: Instant
) -> Iterator[Mapping[str, Any]]:
    """Rows that make these facts; an event that came late follows a heartbeat that makes it so."""
    names = entry.shape.schema.names[: entry.shape.arguments]
    promised: Instant = start
    for each in sorted(presences, key=lambda each: (each.start, format_record(each.record))):
        row = dict(zip(names, each.record.arguments, strict=True))
        if not entry.shape.timed:
            told = {"from": each.start, "until": each.end}
            yield (
                row
                if (each.start, each.end) == (start, END)
                else {
                    "row": row,
                    **{key: at for key, at in told.items() if at != END},
                }
            )
            continue
        late = each.record.time is not None and each.start > max(each.record.time, start)
        if late and each.start > promised:
            promised = each.start
            yield {"heartbeat": each.start}
        yield row
