"""Messages of effects in the words of those who get them: pure functions of a firing."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.message import EmailMessage
from typing import Any, TypeAlias

from tidemill.errors import UsageError
from tidemill.runtime.templates import ARGUMENT, fill, within_json
from tidemill_compute.actions.outbox import END, Firing

JSON = "application/json"
SUBJECT_MAX = 250
"""Characters of a subject: a group has many records."""
SUMMARY_MAX = 1_024
"""Characters of a summary that PagerDuty takes."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DATES_FROM_MS = 100_000_000_000
"""Smaller instants are counters, and no dates."""


@dataclass(frozen=True, slots=True)
class Message:
    """The body of a request, and headers beside those of its endpoint."""

    body: bytes
    headers: Mapping[str, str]


Compose: TypeAlias = Callable[[Firing], Message]


@dataclass(frozen=True, slots=True)
class Names:
    """Names of the arguments of an action's goal, and where a firing can be looked at.

    `link` is a template; without one there is no place to look at.
    """

    arguments: Sequence[str]
    link: str = ""

    def by_name(self, firing: Firing) -> dict[str, Any]:
        """The arguments of a firing by their names."""
        return dict(zip(self.arguments, json.loads(firing.arguments), strict=True))

    def values(self, firing: Firing) -> dict[str, str]:
        """Values of the placeholders of a template."""
        arguments = self.by_name(firing).items()
        time = "" if firing.event_time is None else instant_text(firing.event_time)
        return {
            "key": firing.key,
            "event": firing.of,
            "phase": firing.phase,
            "action": firing.action,
            "record": firing.record,
            "arguments": firing.arguments,
            "instant": instant_text(firing.instant),
            "time": time,
            "link": self.linked(firing),
            "proof": firing.proof,
            "count": str(len(firing.events) or 1),
            **{f"{ARGUMENT}{name}": _text(value) for name, value in arguments},
        }

    def linked(self, firing: Firing) -> str:
        """The place to look at a firing; empty if there is none."""
        from_record = {"record": firing.record, "instant": str(firing.instant)}
        return fill(self.link, from_record, _in_url) if self.link else ""


def instant_text(instant: int) -> str:
    """An instant in ISO 8601 where it is a date, as its number otherwise."""
    return _date(instant) or str(instant)


def _date(instant: int) -> str | None:
    if instant < _DATES_FROM_MS:
        return None
    try:
        moment = _EPOCH + timedelta(milliseconds=instant)
    except OverflowError:
        return None
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _in_url(text: str) -> str:
    return "".join(c if c.isascii() and c.isalnum() else _percent(c) for c in text)


def _percent(letter: str) -> str:
    return "".join(f"%{byte:02X}" for byte in letter.encode())


def line(firing: Firing) -> Message:
    """The firing as one line of JSON."""
    return Message(firing.line.encode(), {"Content-Type": JSON})


def templated(body: str, content_type: str, is_json: bool, names: Names) -> Compose:
    """A body of the user's own; what fills the placeholders of one of JSON is escaped."""
    shown = within_json if is_json else str

    def compose(firing: Firing) -> Message:
        filled = fill(body, names.values(firing), shown)
        return Message(filled.encode(), {"Content-Type": content_type})

    return compose


def cloud_events(names: Names) -> Compose:
    """CloudEvents 1.0, structured mode: the key is the id, the event the subject."""

    def compose(firing: Firing) -> Message:
        date = _date(firing.instant)
        body = {
            "specversion": "1.0",
            "id": firing.key,
            "source": f"/actions/{firing.action}",
            "type": f"dev.tidemill.event.{firing.phase}",
            "subject": firing.of,
            **({} if date is None else {"time": date}),
            "datacontenttype": JSON,
            "data": {
                "record": firing.record,
                "arguments": names.by_name(firing),
                "instant": firing.instant,
                **({"events": _told(firing.events)} if firing.events else {}),
            },
        }
        return _json(body, "application/cloudevents+json")

    return compose


def _told(events: Sequence[Firing]) -> list[Any]:
    return [json.loads(each.line) for each in events]


def alertmanager(
    labels: Mapping[str, str], summary: str, names: Names, lasting_ms: int,
    now_ms: Callable[[], int], description: str = "",
) -> Compose:  # fmt: skip
    """One alert of an Alertmanager: labels say which event it is, so they never change.

    An alert ends by itself after `lasting_ms` of the wall clock, unless it is told again.
    """

    def compose(firing: Firing) -> Message:
        values = names.values(firing)
        arguments = {_label(name): _text(value) for name, value in names.by_name(firing).items()}
        now = now_ms()
        # Of several beginnings of one alert an Alertmanager keeps the first.
        starts = min(firing.instant, now) if _date(firing.instant) else now
        ends = starts if firing.phase == END else now + lasting_ms
        alert: dict[str, Any] = {
            "labels": {**arguments, **labels, "alertname": firing.action, "event": firing.of},
            "annotations": {
                "summary": fill(summary, values),
                "record": firing.record,
                **_described(description, values),
            },
            "startsAt": instant_text(starts),
            "endsAt": instant_text(ends),
        }
        if link := values["link"]:
            alert["generatorURL"] = link
        return _json([alert])

    return compose


def _described(description: str, values: Mapping[str, str]) -> dict[str, str]:
    return {"description": fill(description, values)} if description else {}


def _label(name: str) -> str:
    found = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in name)
    return f"_{found}" if found[0].isdigit() else found


def pager_duty(
    routing_key: Callable[[], str], severity: str, summary: str, names: Names,
    description: str = "",
) -> Compose:  # fmt: skip
    """Events v2 of PagerDuty: a changed event triggers again under its key, one that ends
    resolves.
    """

    def compose(firing: Firing) -> Message:
        values = names.values(firing)
        body: dict[str, Any] = {
            "routing_key": routing_key(),
            "event_action": "resolve" if firing.phase == END else "trigger",
            "dedup_key": firing.of,
        }
        if firing.phase != END:
            date = _date(firing.instant)
            body["payload"] = {
                "summary": fill(summary, values)[:SUMMARY_MAX],
                "source": f"tidemill/{firing.action}",
                "severity": severity,
                **({} if date is None else {"timestamp": date}),
                "custom_details": {
                    "record": firing.record,
                    **_described(description, values),
                    **names.by_name(firing),
                },
            }
            if link := values["link"]:
                body["links"] = [{"href": link, "text": "as of then"}]
        return _json(body)

    return compose


_SLACK = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
"""Letters that Slack asks to escape: no value of an event becomes a link or a mention."""


def slack(text: str, names: Names) -> Compose:
    """A message of a webhook."""

    def compose(firing: Firing) -> Message:
        filled = fill(text, names.values(firing), lambda value: value.translate(_SLACK))
        link = names.linked(firing)
        return _json({"text": f"{filled} <{link}|as of then>" if link else filled})

    return compose


def mail(
    firing: Firing, sender: str, to: Sequence[str], subject: str, text: str, names: Names
) -> EmailMessage:
    """A mail: its id is made of the key, and mails about one event refer to the first of them."""
    values = names.values(firing)
    domain = sender.rpartition("@")[2]
    made = EmailMessage()
    made["From"], made["To"] = sender, ", ".join(to)
    made["Subject"] = " ".join(fill(subject, values).split())[:SUBJECT_MAX]
    made["Message-ID"] = f"<{firing.key}@{domain}>"
    if firing.key != firing.of:
        made["In-Reply-To"] = made["References"] = f"<{firing.of}@{domain}>"
    made["Auto-Submitted"] = "auto-generated"
    link = values["link"]
    made.set_content(f"{fill(text, values)}\n" + (f"\n{link}\n" if link else ""))
    return made


def signed(message: Message, key: str, second: int, secret: str) -> Message:
    """The message with the headers of Standard Webhooks 1.0, of this second.

    Raises: UsageError for a secret that is not `whsec_` and base64.
    """
    try:
        raw = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except ValueError:
        says = "the secret of the signature is not whsec_ and base64"
        raise UsageError(says, reason="Secret") from None
    content = f"{key}.{second}.".encode() + message.body
    mark = base64.b64encode(hmac.new(raw, content, hashlib.sha256).digest()).decode()
    headers = {
        "webhook-id": key,
        "webhook-timestamp": str(second),
        "webhook-signature": f"v1,{mark}",
    }
    return Message(message.body, {**message.headers, **headers})


def _json(body: Any, content_type: str = JSON) -> Message:
    return Message(json.dumps(body, ensure_ascii=False).encode(), {"Content-Type": content_type})
