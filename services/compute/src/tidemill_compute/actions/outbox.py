"""Firings of an action, as rows of its outbox, and the interface of a sink."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from tidemill.arrangement.updates import DIFF, TIME

BEGIN, CHANGE, END = "begin", "change", "end"
"""Phases of an event: it begins, it has other values, it has ended or was withdrawn."""


@dataclass(frozen=True, slots=True)
class Firing:
    """One side effect that is due; `key` is its identity for ever.

    Effects of an action that follows its events have the key of their `event` in common.
    """

    key: str
    action: str
    instant: int
    record: str
    arguments: str
    event_time: int | None
    event: str = ""
    phase: str = BEGIN
    limited: bool = False
    """It is not told: the limit of the action was reached."""
    proof: str = ""
    """Text of its proof, if the message has one."""
    events: tuple[Firing, ...] = ()
    """Of a message that tells a group: its events, in the order of their effects."""

    @property
    def of(self) -> str:
        """Key of the event that it is about."""
        return self.event or self.key

    @property
    def line(self) -> str:
        """The firing as one line of JSON, the key first."""
        body = {
            "key": self.key,
            "action": self.action,
            "instant": self.instant,
            "record": self.record,
            "arguments": json.loads(self.arguments),
            "time": self.event_time,
        }
        if self.event:
            body |= {"event": self.event, "phase": self.phase}
        if self.events:
            body["events"] = [json.loads(each.line) for each in self.events]
        return json.dumps(body, ensure_ascii=False)


Took: TypeAlias = Callable[[Sequence[Firing]], None]
"""Hears of firings whose effects have happened."""


def untold(_: Sequence[Firing]) -> None:
    """For who does not ask which effects have happened."""


class Sink(Protocol):
    """Place of effects. Its memory of keys decides how often one effect may happen.

    * transactional: effect, key and fence are one transaction. Once.
    * keyed: a key that was seen does nothing. Once.
    * askable: it can be asked for keys. Once.
    * plain: none of these. At least once, or with `at_most_once` at most once; never called exactly
      once.
    """

    @property
    def at_most_once(self) -> bool:
        """Whether a firing is marked as done before its effect, rather than after."""

    async def recover(self, doubtful: Sequence[Firing]) -> frozenset[str]:
        """Undo what a crash left half done, and name keys whose effect has happened.

        `doubtful` are the firings of which nobody wrote down that they are done. Asked once at each
        start, before anything is fired. Raises: Unavailable.
        """

    async def fire(self, firings: Sequence[Firing], took: Took = untold) -> None:
        """Bring about the effects, in order; durable once `took` has heard of them, at the latest
        on return.

        Raises: Unavailable, of which nobody knows what happened beyond what `took` heard of;
        Fenced; UsageError.
        """

    async def close(self) -> None:
        """Close its connections and files."""


def key_in(line: bytes) -> str:
    """The key of a line that a sink wrote; a foreign line has none."""
    try:
        body = json.loads(line)
    except (ValueError, RecursionError):
        return ""
    return str(body.get("key", "")) if isinstance(body, dict) else ""


def outbox_rows(firings: Sequence[Firing], schema: pa.Schema) -> pa.Table:
    """The firings as rows of an outbox with these columns."""
    columns = {name: [getattr(firing, name) for firing in firings] for name in schema.names}
    return pa.table(columns, schema=schema)


def follow_on(lasting: dict[str, Firing], firing: Firing) -> None:
    """Keep the last firing of each event that lasts."""
    if firing.phase == END:
        lasting.pop(firing.of, None)
    else:
        lasting[firing.of] = firing


def lasting_in(rows: pa.Table) -> dict[str, Firing]:
    """The last firing of each event that lasts, from all rows of an outbox."""
    names = [name for name in rows.column_names if name not in (TIME, DIFF)]
    found: dict[str, Firing] = {}
    for firing in in_order(Firing(**row) for row in rows.select(names).to_pylist()):
        if not firing.limited:
            follow_on(found, firing)
    return found


def in_order(firings: Iterable[Firing]) -> list[Firing]:
    """Firings in the order of their effects."""
    return sorted(firings, key=_place)


def _place(firing: Firing) -> tuple[int, str, int]:
    """By instants, then by the number of the effect under its event."""
    number = firing.key[len(firing.of) + 1 :]
    return firing.instant, firing.of, int(number or 0)


def firings_of(rows: pa.Table) -> list[tuple[int, Firing]]:
    """The firings that updates of an outbox hold, each with the instant at which it stands there.

    By that, then by instant and key: the order of their effects.
    """
    found = rows.filter(pc.not_equal(rows["key"], ""))
    firings = (Firing(**row) for row in found.drop_columns([TIME, DIFF]).to_pylist())
    due = zip(found[TIME].to_pylist(), firings, strict=True)
    return sorted(due, key=lambda each: (each[0], *_place(each[1])))
