"""A placement in words: as a document for programs, as lines of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.formatter import format_rule
from tidemill.datalog.logical.partial import PARTIAL
from tidemill.datalog.logical.plan_text import column_name
from tidemill.datalog.placement.places import EVERYWHERE, Fragment, HeavyKey, Place, Placement
from tidemill.datalog.placement.sizes import bytes_of
from tidemill.datalog.placement.splitting import CROSSING
from tidemill.datalog.records import format_value

Document: TypeAlias = "dict[str, Any]"
_WAYS = {
    "ranges": "range by range",
    "rounds": "range by range in rounds, each a job of one stage, and anew in each live window that "
    "changes what it reads",
}  # fmt: skip


def placement_document(
    placement: Placement, checked: CheckedProgram, rows: Mapping[str, int] | None = None
) -> Document:
    """The placement as JSON, whose fields stay: `divided`, and `fragments` in their order.

    A fragment has `number`, `way` ("ranges", "rounds" or "one task") and its `reason` and
    `advice`. It `reads` and `keeps` predicates, and has `rules` and `heavy` keys. Each round hands
    on what it `returns`, to the places that are named. About so many `rows` of a predicate have the
    `value` of such a key in a `column`. They are `divided` among all ranges, or `held`
    says why not. A read says where facts of divided keys are, `heavy_at`. A place is a list of
    columns, "in all ranges" or "in one range". Facts that a later fragment merges have none.
    They stand `for` a "group", a "match" or a "fact"; `why` says of an aggregate why not for a
    group. A rule has `number`, `text` and the variables `by` which its matches are divided.
    Rows of an input that are counted in `rows` take about as many `bytes` in an exchange, null
    for others. Cost: O(text).
    """
    told = _NamedFragments(placement, checked, rows or {})
    fragments = [told.fragment(each) for each in placement.fragments]
    return {"divided": placement.divided, "fragments": fragments}


def placement_lines(document: Document) -> list[str]:
    """The document as lines: each fragment, what it reads, its rules, what it hands on."""
    lines = []
    for each in document["fragments"]:
        said = _WAYS.get(each["way"], f"one task: {each['reason']}")
        lines.append(f"  fragment {each['number']}: {said}")
        lines += [f"    to change that: {each['advice']}"] if each["advice"] else []
        lines += map(_heavy_line, each["heavy"])
        for read in each["reads"]:
            source = "" if read["from"] is None else f" of fragment {read['from']}"
            size = "" if read["bytes"] is None else f", about {read['bytes']:,} bytes"
            pieces = "" if read["heavy_at"] is None else f"; of those keys{_at(read['heavy_at'])}"
            lines.append(f"    reads {read['name']}{source}{_at(read['at'])}{pieces}{size}")
        for rule in each["rules"]:
            by = f" by ({', '.join(rule['by'])})" if rule["by"] else ""
            first, *rest = rule["text"].splitlines() or ["merges what ranges derive"]
            name = f"rule {rule['number']}{by}: " if rule["number"] else ""
            lines.append(f"    {name}{first}")
            lines += [f"      {line}" for line in rest]
        for back in each["returns"]:
            lines.append(f"    each round hands on {back['name']}{_at(back['at'])}")
        for kept in each["keeps"]:
            to = ", ".join(map(str, kept["to"]))
            on = f", handed on to fragment {to}" if to else ""
            why = f", one fact for each match: {kept['why']}" if kept["why"] else ""
            lines.append(f"    keeps {kept['name']}{_at(kept['at'])}{on}{why}")
    return lines


def _heavy_line(key: Document) -> str:
    where = "all ranges" if key["divided"] else f"one range, since {key['held']}"
    rows = f"about {key['rows']:,} rows of {key['name']} with {key['value']} as {key['column']}"
    return f"    {rows}: in {where}"


def _at(place: Sequence[str] | str | None) -> str:
    if place is None:
        return ", to be merged"
    return f" {place}" if isinstance(place, str) else f" by ({', '.join(place)})"


class _NamedFragments:
    """Fragments with the names that the program gives."""

    def __init__(
        self, placement: Placement, checked: CheckedProgram, rows: Mapping[str, int]
    ) -> None:
        self._counted = rows
        self._placement = placement
        self._checked = placement.plan.checked
        self._texts = {rule.number: format_rule(rule) for rule in checked.program.rules}
        self._of = {n: each.number for each in placement.fragments for n in each.derives}
        self._rules = {r.head.predicate: r.number for r in placement.plan.rules}

    def fragment(self, fragment: Fragment) -> Document:
        """One fragment."""
        reads = [
            {
                "name": self._name(read.predicate), "from": self._of_fragment(read.predicate),
                "at": self._place(read.place, read.predicate), "bytes": self._bytes(read.predicate),
                "heavy_at": self._pieces(read.place, read.predicate),
            }
            for read in fragment.reads
            if read.predicate not in fragment.returning
        ]  # fmt: skip
        rules = [
            {
                "number": rule.number, "text": self._texts.get(rule.number, ""),
                "by": [name for name in key if not name.startswith("#")],
            }
            for rule, key in zip(fragment.plan.rules, fragment.keys, strict=True)
            if not fragment.returning or rule.head.predicate in fragment.returning
        ]  # fmt: skip
        keeps = []
        for name in fragment.derives if not fragment.returning else fragment.placed:
            place = fragment.placed.get(name)
            at = None if place is None else self._place(place, name)
            keeps.append(
                {
                    "name": self._name(name), "at": at, "to": self._readers(name),
                    "for": self._stands_for(name), "why": self._placement.matches.get(name, ""),
                }
            )  # fmt: skip
        return {
            "number": fragment.number + 1, "way": fragment.way, "reason": fragment.reason,
            "advice": fragment.advice, "reads": reads, "rules": rules, "keeps": keeps,
            "heavy": [self._heavy(key, fragment) for key in fragment.heavy],
            "returns": self._returns(fragment),
        }  # fmt: skip

    def _returns(self, fragment: Fragment) -> list[Document]:
        """Derivations of a round for the next one, once for each place of their facts."""
        found = []
        for read in fragment.reads if fragment.returning else ():
            if read.predicate in fragment.returning:
                base, place = (
                    read.predicate.rpartition(":")[2],
                    self._place(read.place, read.predicate),
                )
                if {"name": base, "at": place} not in found:
                    found.append({"name": base, "at": place})
        return found

    def _heavy(self, key: HeavyKey, fragment: Fragment) -> Document:
        why = fragment.undivided.get(key, "")
        return {
            "name": self._name(key.predicate), "value": format_value(key.value), "rows": key.rows,
            "column": column_name(key.predicate, key.column, self._checked),
            "divided": not why, "held": why,
        }  # fmt: skip

    def _pieces(self, place: Place, predicate: str) -> list[str] | str | None:
        """The place of facts of heavy keys, None where they have no other one."""
        if not place.heavy:
            return None
        pieces = Place(place.pieces) if place.pieces else EVERYWHERE
        return self._place(pieces, predicate)

    def _of_fragment(self, predicate: str) -> int | None:
        return self._of[predicate] + 1 if predicate in self._of else None

    def _bytes(self, predicate: str) -> int | None:
        """About what the rows of an input take in an exchange."""
        rows = self._counted.get(predicate.rpartition(":")[2])
        if rows is None or predicate in self._of:
            return None
        return bytes_of(rows, len(self._checked.columns[predicate]))

    def _stands_for(self, predicate: str) -> str:
        """One fact is there for a group, for a match of an aggregating rule, or for a fact."""
        if predicate.startswith(PARTIAL):
            return "group"
        return "match" if predicate in self._placement.matches else "fact"

    def _readers(self, predicate: str) -> list[int]:
        return [
            each.number + 1
            for each in self._placement.fragments
            if any(read.predicate == predicate for read in each.reads)
        ]

    def _name(self, predicate: str) -> str:
        base = predicate.rpartition(":")[2]
        if predicate.startswith(CROSSING):
            groups = "groups of " if predicate.startswith(PARTIAL) else ""
            return f"{groups}{base} of rule {self._rules[predicate]}"
        return f"{base}, given" if base != predicate else base

    def _place(self, place: Place, predicate: str) -> list[str] | str:
        if place.everywhere:
            return "in all ranges"
        columns = [column_name(predicate, at, self._checked) for at in place.positions]
        return columns or "in one range"
