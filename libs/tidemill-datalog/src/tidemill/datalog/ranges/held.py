"""The facts that one range reads under one name, from interval to interval."""

from __future__ import annotations

from collections.abc import Iterable

from tidemill.datalog.ranges.work import Update
from tidemill.datalog.records import Record
from tidemill.datalog.state import encode_fields


class Held:
    """Updates of facts: those that are there at the end of an interval, and those to come."""

    def __init__(self) -> None:
        self._present: dict[tuple[str, int], tuple[Record, int]] = {}
        self._waiting: list[Update] = []

    def put(self, updates: Iterable[Update]) -> None:
        """Updates that begin at or after the end of the last interval."""
        self._waiting += updates

    def present(self) -> list[Update]:
        """The facts that are there, with their ends and how often; their starts say nothing."""
        return [(record, 0, end, diff) for (_, end), (record, diff) in self._present.items()]

    def take(self, upper: int) -> list[Update]:
        """The updates that begin below the end of an interval, which is taken in by that."""
        due = [update for update in self._waiting if update[1] < upper]
        self._waiting = [update for update in self._waiting if update[1] >= upper]
        for record, _, end, diff in due:
            key = fact_key(record), end
            known = self._present.get(key, (record, 0))[1]
            self._present[key] = record, known + diff
        self._present = {
            key: found for key, found in self._present.items() if found[1] and key[1] >= upper
        }
        return due


def fact_key(record: Record) -> str:
    """A text that tells facts apart as the language does: 1 and true are two."""
    return encode_fields((record.arguments, record.time, record.expires, record.parafacts))
