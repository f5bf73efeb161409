"""Firings of an action, as rows of its outbox, and the interface of a sink."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import pyarrow as pa

from tidemill.arrangement.updates import DIFF, TIME, update_schema

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


def firing_updates(firings: Sequence[Firing], schema: pa.Schema) -> pa.Table:
    """The firings as updates of an outbox with these columns, each at its instant."""
    columns = {name: [getattr(firing, name) for firing in firings] for name in schema.names}
    columns |= {TIME: [firing.instant for firing in firings], DIFF: [1] * len(firings)}
    return pa.table(columns, schema=update_schema(schema))


def follow_on(lasting: dict[str, Firing], firing: Firing) -> None:
    """Keep the last firing of each event that lasts."""
    if firing.phase == END:
        lasting.pop(firing.of, None)
    else:
        lasting[firing.of] = firing
