"""Statuses of objects, and events of their changes. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tidemill.kubernetes.api import Json
from tidemill.kubernetes.events import moment
from tidemill.runtime.durations import format_duration
from tidemill.time import Frontier, sole_time
from tidemill.time.instants import ms_since_epoch
from tidemill_operator.objects import Declared, Key, KnownResource
from tidemill_operator.reconciling import owners

READY, PAUSED, BLOCKED = "Ready", "Paused", "DeletionBlocked"
ON_SPARK = "OnSpark"
"""Whether a view is kept by windows on Spark, with the cause."""
MESSAGE_MAX = 4_096
_SAID = ("type", "status", "reason", "message", "lastTransitionTime")
"""Texts of every condition."""
MS_OF_2000 = 946_684_800_000
"""From here on a number of milliseconds is taken for an instant that people read as a date."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why Tidemill did not do what an object asks for: a CamelCase word and a sentence."""

    reason: str
    message: str


DENIED, NOT_GRANTED, NO_USER = "Denied", "NotGranted", "NoUser"
"""Reasons of refusals of objects that are not entitled to what they ask for."""


def barred(refused: Mapping[str, Refusal]) -> frozenset[str]:
    """The uids of objects that hold no name against others, of what was refused by uid."""
    unentitled = (DENIED, NOT_GRANTED, NO_USER)
    return frozenset(uid for uid, refusal in refused.items() if refusal.reason in unentitled)


@dataclass(frozen=True, slots=True)
class Report:
    """A status to write."""

    of: Declared
    status: Json


@dataclass(frozen=True, slots=True)
class Event:
    """Something that people should see at the object."""

    of: Declared
    warning: bool
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition as it is now, before times are added."""

    kind: str
    status: bool
    reason: str
    message: str


def reports(
    objects: Sequence[Declared],
    known: Mapping[Key, KnownResource],
    refused: Mapping[str, Refusal],
    now_ms: int,
    interval_ms: int,
) -> tuple[list[Report], list[Event]]:
    """The statuses that are due and the events that go with them; `refused` is by uid.

    A condition or generation that changed is written at once, a frontier that moved only after the
    interval. An equal status is not written.
    """
    first = owners(objects, known, barred(refused))
    due: list[Report] = []
    events: list[Event] = []
    for each in objects:
        owner = first.get(each.key) == each.uid
        there = known.get(each.key) if owner else None
        now = _conditions(each, there, refused.get(each.uid), owner)
        status = _status(each, there, now, now_ms)
        changed = [condition for condition in now if _differs(each, condition)]
        if changed or _is_due(each, status, now_ms, interval_ms):
            due.append(Report(each, status))
        events += [_event(each, condition) for condition in changed]
    return due, events


def _conditions(
    each: Declared, there: KnownResource | None, refusal: Refusal | None, owner: bool
) -> list[Condition]:
    found = [_readiness(each, there, refusal, owner)]
    if there is not None and owner and there.engine:
        on_spark = there.engine == "spark"
        found.append(Condition(ON_SPARK, on_spark, there.engine_cause, there.engine_reason))
    if each.paused:
        found.append(Condition(PAUSED, True, "Annotated", "the object is left alone"))
    if each.deleting and refusal is not None:
        found.append(Condition(BLOCKED, True, refusal.reason, refusal.message))
    return found


def _readiness(
    each: Declared, there: KnownResource | None, refusal: Refusal | None, owner: bool
) -> Condition:
    if not owner and (refusal is None or each.deleting):
        says = f"{each.kind}/{each.name} belongs to another namespace"
        return Condition(READY, False, "NameTaken", says)
    if refusal is not None and not each.deleting:
        return Condition(READY, False, refusal.reason, refusal.message)
    if there is None:
        return Condition(READY, False, "Pending", "Tidemill does not have it yet")
    reason = there.reason or ("Running" if there.ready else "Starting")
    return Condition(READY, there.ready, reason, there.message)


def _previous(each: Declared) -> dict[str, Json]:
    return _conditions_by_type(each.status)


def _conditions_by_type(status: Json) -> dict[str, Json]:
    """The conditions of a status that are ones: others may write it as well."""
    found = status.get("conditions")
    return {
        one["type"]: one
        for one in (found if isinstance(found, list) else ())
        if isinstance(one, dict) and all(isinstance(one.get(name), str) for name in _SAID)
    }


def _differs(each: Declared, condition: Condition) -> bool:
    before = _previous(each).get(condition.kind)
    if before is None:
        return True
    said = (before["status"], before["reason"], before["message"])
    return said != (str(condition.status), condition.reason, condition.message[:MESSAGE_MAX])


def _status(
    each: Declared, there: KnownResource | None, now: Sequence[Condition], now_ms: int
) -> Json:
    before = _previous(each)
    conditions = []
    for one in now:
        old = before.get(one.kind, {})
        flipped = old.get("status") != str(one.status)
        conditions.append(
            {
                "type": one.kind,
                "status": str(one.status),
                "reason": one.reason,
                "message": one.message[:MESSAGE_MAX],
                "observedGeneration": each.generation,
                "lastTransitionTime": moment(now_ms) if flipped else old["lastTransitionTime"],
            }
        )
    status: Json = {
        "observedGeneration": each.generation,
        "conditions": conditions,
        "reportedAt": moment(now_ms),
    }
    if there is not None:
        status |= _numbers(there)
    return status


def _numbers(there: KnownResource) -> Json:
    shown: Json = {
        "since": instant(there.since),
        "upper": instant(there.upper),
        "lag": None if there.lag_ms is None else lag(there.lag_ms),
        "holders": there.holders,
        "oldestHolder": there.oldest_holder or None,
        "batches": there.batches,
        "bytes": there.bytes,
        "recordsPerSecond": None if there.records_per_s is None else round(there.records_per_s),
        "recordsBehind": there.records_behind,
        "timeLeft": None if there.left_ms is None else lag(there.left_ms),
    }
    return {name: value for name, value in shown.items() if value is not None}


def _is_due(each: Declared, status: Json, now_ms: int, interval_ms: int) -> bool:
    before = dict(each.status)
    reported = before.pop("reportedAt", None)
    same = before == {name: value for name, value in status.items() if name != "reportedAt"}
    if same:
        return False
    if reported is None or before.get("observedGeneration") != each.generation:
        return True
    if _kinds(before) != _kinds(status):
        return True
    # NB: others may write it: an instant that is none, or is to come, must not end the reports.
    reported_ms = _ms(reported)
    return reported_ms is None or not 0 <= now_ms - reported_ms < interval_ms


def _kinds(status: Json) -> set[str]:
    return set(_conditions_by_type(status))


def _event(each: Declared, condition: Condition) -> Event:
    warning = condition.kind == BLOCKED or (
        condition.kind == READY and not condition.status and condition.reason not in _PASSING
    )
    reason = "DeletionRefused" if condition.kind == BLOCKED else condition.reason
    said = {PAUSED: "Paused"}.get(condition.kind, reason)
    return Event(each, warning, said, condition.message or f"{each.kind}/{each.name}: {said}")


_PASSING = {"Pending", "Starting"}


def _ms(written: Any) -> int | None:  # any JSON
    try:
        return ms_since_epoch(datetime.fromisoformat(written))
    except (ValueError, TypeError, OverflowError):
        return None


def instant(frontier: Frontier | None) -> str | None:
    """A frontier as a short text: a date where the number can be one, `[]` if it is closed."""
    if frontier is None:
        return None
    if frontier.empty:
        return "[]"
    at = sole_time(frontier)
    latest = int(datetime(9999, 1, 1, tzinfo=UTC).timestamp() * 1000)
    if not MS_OF_2000 <= at < latest:
        return str(at)
    whole = moment(at)
    return whole if at % 1000 == 0 else f"{whole[:-1]}.{at % 1000:03}Z"


def lag(ms: int) -> str:
    """A lag as people read it: to the millisecond below ten seconds, else to the second."""
    return format_duration(ms if ms < 10_000 else ms // 1000 * 1000)
