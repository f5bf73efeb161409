"""A status is honest, short and rarely written."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidemill.time import Frontier, frontier
from tidemill_operator.objects import PAUSE, Declared, KnownResource
from tidemill_operator.reporting import Refusal, instant, lag, reports

NOW = 1_700_000_000_000
ONE = Declared("View", "n", "late", "u", 3, "2026-01-01T00:00:00Z", {"program": "p(x) := q(x);"})
RUNS = KnownResource(
    None, True, "Running", "", frontier(0), frontier(NOW - 250), 250, 2, "session", 3, 999
)


def written(
    one: Declared, known: KnownResource | None, refused: Refusal | None = None, at: int = NOW
) -> Declared:
    """The object after its status was written, if it was."""
    found = {} if known is None else {one.key: known}
    due, _ = reports([one], found, {} if refused is None else {one.uid: refused}, at, 5_000)
    return replace(one, status=due[0].status) if due else one


def ready(one: Declared) -> tuple[str, str]:
    (condition,) = [each for each in one.status["conditions"] if each["type"] == "Ready"]
    return condition["status"], condition["reason"]


def test_a_running_view_shows_its_frontiers() -> None:
    status = written(ONE, RUNS).status
    assert ready(written(ONE, RUNS)) == ("True", "Running")
    assert status["since"] == "0"
    assert status["upper"] == "2023-11-14T22:13:19.750Z"
    assert status["lag"] == "250ms"
    assert (status["holders"], status["batches"], status["bytes"]) == (2, 3, 999)
    assert status["observedGeneration"] == status["conditions"][0]["observedGeneration"] == 3


def test_a_source_without_records_is_ready_and_its_condition_says_where_none_came() -> None:
    says = "no records in topic flights at kafka:9092 yet"
    status = written(ONE, replace(RUNS, reason="NoRecords", message=says)).status
    (condition,) = status["conditions"]
    assert (condition["status"], condition["reason"]) == ("True", "NoRecords")
    assert condition["message"] == says


def test_a_source_that_catches_up_shows_its_speed_and_what_is_left() -> None:
    behind = replace(RUNS, records_per_s=1_234.5, records_behind=90_000, left_ms=75_250)
    status = written(ONE, behind).status
    assert (status["recordsPerSecond"], status["recordsBehind"]) == (1_234, 90_000)
    assert status["timeLeft"] == "1m15s"
    assert "timeLeft" not in written(ONE, replace(behind, left_ms=None)).status
    assert "recordsBehind" not in written(ONE, RUNS).status


def test_frontiers_are_copied_at_most_every_interval() -> None:
    first = written(ONE, RUNS)
    moved = replace(RUNS, upper=frontier(NOW))
    assert written(first, moved, at=NOW + 4_000) is first
    assert written(first, moved, at=NOW + 5_000).status["upper"] == "2023-11-14T22:13:20Z"
    assert written(first, RUNS, at=NOW + 50_000) is first


def test_a_change_of_condition_or_generation_is_written_at_once() -> None:
    first = written(ONE, RUNS)
    stalled = replace(RUNS, ready=False, reason="Stalled", message="the topic is gone")
    assert ready(written(first, stalled, at=NOW + 1)) == ("False", "Stalled")
    changed = written(replace(first, generation=4), RUNS, at=NOW + 1)
    assert changed.status["observedGeneration"] == 4


def test_a_transition_is_dated_only_when_the_status_flips() -> None:
    first = written(ONE, replace(RUNS, ready=False, reason="Starting"))
    second = written(first, replace(RUNS, ready=False, reason="Retrying"), at=NOW + 60_000)
    third = written(second, RUNS, at=NOW + 120_000)
    dates = [one.status["conditions"][0]["lastTransitionTime"] for one in (first, second, third)]
    assert dates == ["2023-11-14T22:13:20Z", "2023-11-14T22:13:20Z", "2023-11-14T22:15:20Z"]


def test_a_refusal_is_said_with_its_reason() -> None:
    refused = Refusal("UnknownCollection", "there is no flights")
    due, events = reports([ONE], {}, {"u": refused}, NOW, 5_000)
    assert due[0].status["conditions"][0]["message"] == "there is no flights"
    assert [(e.warning, e.reason) for e in events] == [(True, "UnknownCollection")]
    again = replace(ONE, status=due[0].status)
    assert reports([again], {}, {"u": refused}, NOW + 60_000, 5_000) == ([], [])


def test_a_blocked_deletion_is_a_condition_and_an_event() -> None:
    leaving = replace(written(ONE, RUNS), deleting=True)
    refused = Refusal("InUse", "View/late is used by Action/tell: delete them first")
    due, events = reports([leaving], {ONE.key: RUNS}, {"u": refused}, NOW, 5_000)
    assert [c["type"] for c in due[0].status["conditions"]] == ["Ready", "DeletionBlocked"]
    assert [(e.warning, e.reason, e.message) for e in events] == [
        (True, "DeletionRefused", refused.message)
    ]


def test_a_name_that_another_namespace_has_is_said_to_be_taken() -> None:
    second = replace(ONE, namespace="m", uid="v", created="2026-01-02T00:00:00Z")
    due, _ = reports([ONE, second], {ONE.key: RUNS}, {}, NOW, 5_000)
    assert [ready(replace(r.of, status=r.status)) for r in due] == [
        ("True", "Running"), ("False", "NameTaken"),
    ]  # fmt: skip


def test_a_view_says_whether_it_is_on_spark_and_why() -> None:
    why = "about 9 bytes of 1 rows, above 80% of limits.view_bytes (10)"
    local = replace(RUNS, engine="local", engine_cause="Fits", engine_reason="the rows fit")
    spark = replace(RUNS, engine="spark", engine_cause="Memory", engine_reason=why)
    first = written(ONE, local)
    moved = written(first, spark)
    found = []
    for one in (first, moved):
        (condition,) = [each for each in one.status["conditions"] if each["type"] == "OnSpark"]
        found.append((condition["status"], condition["reason"], condition["message"]))
    assert found == [("False", "Fits", "the rows fit"), ("True", "Memory", why)]
    kinds = [each["type"] for each in written(ONE, RUNS).status["conditions"]]
    assert kinds == ["Ready"]  # a source has none


def test_a_pause_comes_and_goes() -> None:
    paused = written(replace(ONE, annotations={PAUSE: "true"}), RUNS)
    assert {c["type"] for c in paused.status["conditions"]} == {"Ready", "Paused"}
    back = written(replace(paused, annotations={}), RUNS, at=NOW + 1)
    assert {c["type"] for c in back.status["conditions"]} == {"Ready"}


@pytest.mark.parametrize(
    ("held", "shown"),
    [(None, None), (frontier(), "[]"), (frontier(0), "0"), (frontier(9_000), "9000"),
     (frontier(1_372_939_200_000), "2013-07-04T12:00:00Z"), (frontier(2**63), str(2**63))],
)  # fmt: skip
def test_a_frontier_is_a_short_text(held: Frontier | None, shown: str | None) -> None:
    assert instant(held) == shown


@pytest.mark.parametrize(("ms", "shown"), [(0, "0s"), (250, "250ms"), (61_700, "1m1s")])
def test_a_lag_is_as_exact_as_people_need_it(ms: int, shown: str) -> None:
    assert lag(ms) == shown


@pytest.mark.parametrize(
    "reported",
    ["9999-12-31T23:59:59Z", "0000-01-01T00:00:00Z", "9999-12-31T23:59:59-23:59", "-1", "NaN",
     "2016-12-31T23:59:60Z", "yesterday", "", -1, 1e400, float("nan"), 10**30, True, [], {}],
)  # fmt: skip
def test_an_odd_instant_of_the_last_report_does_not_end_the_reports(reported: object) -> None:
    """One in the year 9999 froze a status for good, and a year 0 ended the round of all objects."""
    first = written(ONE, RUNS)
    odd = replace(first, status={**first.status, "reportedAt": reported})
    moved = replace(RUNS, upper=frontier(NOW))
    assert written(odd, moved, at=NOW + 1).status["reportedAt"] == "2023-11-14T22:13:20Z"


@pytest.mark.parametrize(
    "conditions", [None, 5, "Ready", {}, [None], ["Ready"], [{}], [{"type": "Ready"}],
                   [{"type": [], "status": {}, "reason": 5, "message": None}]],
)  # fmt: skip
def test_odd_conditions_of_a_status_are_written_anew(conditions: object) -> None:
    odd = replace(ONE, status={**written(ONE, RUNS).status, "conditions": conditions})
    assert ready(written(odd, RUNS)) == ("True", "Running")
