"""Messages in the words of those who get them, and templates of the user's own."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.datalog.goals import goal_over
from tidemill.datalog.records import Record
from tidemill.errors import UsageError
from tidemill.runtime.templates import NAMES, fill, is_template, placeholders_in, within_json
from tidemill.time.typed import Json
from tidemill_compute.actions import messages
from tidemill_compute.actions.firings import Firings
from tidemill_compute.actions.messages import Compose, Message, Names
from tidemill_compute.actions.outbox import BEGIN, CHANGE, END, Firing

AT = 1_372_939_200_000
NAMED = Names(["tank", "level"], "https://c.example/#as_of=${instant}&record=${record}")
BARE = Names(["tank", "level"])


def firing(phase: str = BEGIN, number: int = 0, instant: int = AT) -> Firing:
    key = f"k.{number}" if number else "k"
    record = 'alarm("a&b", 7)'
    return Firing(key, "tell", instant, record, '["a&b", 7]', instant - 1, "k", phase)


def body_of(compose: Compose, of: Firing) -> Any:
    return json.loads(compose(of).body)


def test_an_alert_keeps_its_labels_and_ends_with_its_event() -> None:
    compose = messages.alertmanager({"team": "x"}, "${arg.tank}", NAMED, 240_000, lambda: AT + 50)
    (begins,), (changes,), (ends,) = (
        body_of(compose, firing(phase, number))
        for number, phase in enumerate((BEGIN, CHANGE, END))
    )  # fmt: skip
    labels = {"alertname": "tell", "event": "k", "tank": "a&b", "level": "7", "team": "x"}
    assert begins["labels"] == changes["labels"] == ends["labels"] == labels
    assert begins["startsAt"] == ends["endsAt"] == "2013-07-04T12:00:00.000Z"
    assert begins["endsAt"] == changes["endsAt"] == "2013-07-04T12:04:00.050Z"
    assert begins["annotations"] == {"summary": "a&b", "record": 'alarm("a&b", 7)'}
    assert begins["generatorURL"].endswith(
        "#as_of=1372939200000&record=alarm%28%22a%26b%22%2C%207%29"
    )


def test_an_alert_of_the_future_ends_now() -> None:
    compose = messages.alertmanager({}, "s", BARE, 1, lambda: AT - 1_000)
    (alert,) = body_of(compose, firing(END))
    assert alert["endsAt"] == "2013-07-04T11:59:59.000Z"


def test_an_argument_with_another_name_than_a_label_has_gets_one() -> None:
    names = Names(["größe x", "1st"])
    compose = messages.alertmanager({}, "s", names, 1, lambda: AT)
    (alert,) = body_of(compose, firing())
    assert alert["labels"] == {"alertname": "tell", "event": "k", "gr__e_x": "a&b", "_1st": "7"}


def test_pager_duty_triggers_updates_and_resolves_under_one_key() -> None:
    compose = messages.pager_duty(lambda: "secret", "critical", "x" * 2_000, NAMED)
    told = [body_of(compose, firing(p, n)) for n, p in enumerate((BEGIN, CHANGE, END))]
    assert [each["event_action"] for each in told] == ["trigger", "trigger", "resolve"]
    assert {each["dedup_key"] for each in told} == {"k"}
    assert told[0]["payload"]["custom_details"]["tank"] == "a&b"
    assert len(told[0]["payload"]["summary"]) == messages.SUMMARY_MAX
    assert "payload" not in told[2]


def test_a_description_has_the_proof_for_alerts_and_pages() -> None:
    proved = replace(firing(), proof="because\nof it")
    alert = messages.alertmanager({}, "s", BARE, 1, lambda: AT, "why: ${proof}")
    (told,) = body_of(alert, proved)
    page = body_of(messages.pager_duty(lambda: "k", "info", "s", BARE, "why: ${proof}"), proved)
    assert told["annotations"]["description"] == "why: because\nof it"
    assert page["payload"]["custom_details"]["description"] == "why: because\nof it"


def test_slack_is_told_of_no_links_that_an_event_makes_up() -> None:
    compose = messages.slack("*${action}* ${record}", BARE)
    assert body_of(compose, firing()) == {"text": '*tell* alarm("a&amp;b", 7)'}


def test_a_cloud_event_has_the_key_as_its_id_and_the_event_as_its_subject() -> None:
    compose = messages.cloud_events(BARE)
    told = body_of(compose, firing(CHANGE, 3))
    assert (told["id"], told["subject"]) == ("k.3", "k")
    assert told["type"] == "dev.tidemill.event.change"
    assert told["data"]["arguments"] == {"tank": "a&b", "level": 7}
    assert "time" not in body_of(compose, firing(instant=17))


def test_mails_of_one_event_are_one_thread() -> None:
    made = [
        messages.mail(firing(p, n), "a@b.example", ["c@d.example"], "S\n${record}", "T", NAMED)
        for n, p in enumerate((BEGIN, END))
    ]
    assert [each["Message-ID"] for each in made] == ["<k@b.example>", "<k.1@b.example>"]
    assert made[0]["References"] is None
    assert made[1]["References"] == "<k@b.example>"
    assert made[0]["Subject"] == 'S alarm("a&b", 7)'
    assert "https://c.example/" in made[0].get_content()


def test_the_signature_is_the_one_that_standard_webhooks_says() -> None:
    """By the example of the specification, version 1.0.0."""
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    body = b'{"test": 2432232314}'
    made = messages.signed(Message(body, {}), "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, secret)
    assert made.headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="

    with pytest.raises(UsageError, match="whsec_"):
        messages.signed(Message(b"", {}), "k", 1, "whsec_!")


@given(st.text(), st.text())
def test_a_body_of_json_stays_json_whatever_fills_its_places(tank: str, record: str) -> None:
    compose = messages.templated(
        '{"t": "${arg.tank}: ${record}", "n": ${arg.level}}', "application/json", True, BARE
    )
    of = Firing("k", "tell", 5, record, json.dumps([tank, 7]), None)
    assert body_of(compose, of) == {"t": f"{tank}: {record}", "n": 7}


def test_a_body_that_is_no_json_is_filled_as_it_stands() -> None:
    text = messages.templated('{"t": ${record}}', "text/plain", False, BARE)(firing())
    assert text.body == b'{"t": alarm("a&b", 7)}'


PIECES = ["a", "$", "$$", "${key}", "${arg.k}", "${", "}", "${keys}", "\n"]


@given(st.lists(st.sampled_from(PIECES), max_size=8).map("".join))
def test_a_template_has_only_places_and_doubled_dollars(text: str) -> None:
    """The twin takes one piece after the other from the front."""
    rest, good = text, True
    known = ["$$", *(f"${{{name}}}" for name in (*NAMES, "arg.k"))]
    while rest and good:
        piece = next((each for each in known if rest.startswith(each)), rest[0])
        good, rest = piece != "$", rest[len(piece) :]
    assert is_template(text) == good


def test_places_are_filled_and_dollars_halved() -> None:
    assert placeholders_in("a ${key} $$ ${arg.x}") == ["key", "arg.x"]
    assert (
        fill("a ${key} $$ ${arg.x}", {"key": "${x}", "arg.x": '"'}, within_json) == 'a ${x} $ \\"'
    )


TYPED: dict[str, tuple[Any, Any]] = {
    "at": (datetime(2013, 7, 4, 12, 0, 0, 5_000), "2013-07-04T12:00:00.005Z"),
    "day": (date(2013, 7, 4), "2013-07-04"),
    "took": (timedelta(seconds=1, milliseconds=500), "1s500ms"),
    "price": (Decimal("12.5"), "12.5"),
    "raw": (b"\x00\xff", "AP8="),
    "id": (UUID(int=7), "00000000-0000-0000-0000-000000000007"),
    "extra": (Json('{"a":[1,2.5]}'), {"a": [1, 2.5]}),
    "tags": (frozenset({"x", "y"}), ["x", "y"]),
    "level": (7, 7),
    "big": (1 << 60, 1 << 60),
    "share": (0.1, 0.1),
    "on": (True, True),
    "none": (None, None),
}


def test_arguments_of_each_type_are_told_as_every_answer_has_them() -> None:
    """A receiver reads instants, decimals and bytes as it would from a question over HTTP."""
    goal = goal_over("e(level: 7)", {"e": tuple((name, "int") for name in TYPED)}, "tell")
    record = Record("e", tuple(value for value, _ in TYPED.values()), AT)
    (told,), _ = Firings(goal, follow=False).take([(record, AT, 1)])
    assert json.loads(told.arguments) == [text for _, text in TYPED.values()]
    names = Names(list(TYPED))
    (alert,) = body_of(messages.alertmanager({}, "${arg.price} ${arg.at}", names, 1, int), told)
    assert alert["annotations"]["summary"] == "12.5 2013-07-04T12:00:00.005Z"
    assert alert["labels"]["price"] == "12.5"
