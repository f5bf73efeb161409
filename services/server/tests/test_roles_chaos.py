"""The whole system in processes, over three brokers, Redis and a bucket, through a storm with every
kind of fault.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidemill.testkit.service_faults.endpoints import ANSWERS
from tidemill.testkit.service_faults.outcome import Outcome
from tidemill.testkit.service_faults.poison import ROWS
from tidemill.testkit.service_faults.run import RecoveryLimits, run

PATIENT = RecoveryLimits(lag_s_max=20.0, recovery_s_max=150.0, failovers=0)
"""The speed of a recovery depends on the machine: `make chaos-services` judges it, and this test
that there is one.
"""

FAULTS = (
    "kill a broker", "kill Redis", "silent redis", "refusing redis", "slow redis", "cut redis",
    "silent s3", "refusing s3", "slow s3", "cut s3",
)  # fmt: skip
FELT = (
    "rows of a table refused", "documents refused", "uploads refused or dropped", "announcements passed over",
    "Redis came back as another run", "redis was met silent", "redis was met slow", "s3 was met slow",
    "s3 was met silent", "s3 was met refusing", "connections to redis cut", "connections to s3 cut",
)  # fmt: skip


POISON = (
    *(f"records of {topic}" for topic in ROWS), "keys of records", "records of Avro", "lines of files", "files", "rows of a table", "documents", "uploads",
    "announcements",
)  # fmt: skip


@pytest.fixture
def quiet() -> Iterator[None]:
    """Complaints of the test's own client about killed brokers are no news."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.server
@pytest.mark.timeout(900)
async def test_a_storm_with_every_kind_of_fault_changes_no_answer_and_repeats_no_effect(
    tmp_path: Path, quiet: None
) -> None:
    said: list[str] = []
    outcome = await run(tmp_path, 1, 0.0, limits=PATIENT, say=said.append)
    assert not outcome.violations, "\n".join([*said, *outcome.lines()])
    happened_all(outcome)


def happened_all(outcome: Outcome) -> None:
    """Each kind of fault came about and was noticed, and everything was really looked at."""
    faults, felt = dict(outcome.counted("fault: ")), dict(outcome.counted("felt: "))
    assert {kind for kind in FAULTS if not faults.get(kind)} == set()
    assert {kind for kind in FELT if not felt.get(kind)} == set()
    for kind in ("kill ", "pause ", "kill both of "):
        assert any(name.startswith(kind) for name in faults), faults
    for what in POISON:
        assert outcome.happened[f"poison, {what}"], what
    for who in ("registry", "target"):
        for answer in ANSWERS:
            assert faults.get(f"{who} answers {answer}"), (who, answer)
    for what in (
        "answers checked", "rows in them", "answers asked for twice", "reads at a held time", "since moved",
        "holds that since stood at", "effects of tell-file", "effects of tell-topic", "effects of tell-redis",
        "effects of tell-http", "dead letters of meter", "dead letters of drop", "rows of grain/deadletters", "rows of grain",
        "rows of drop", "rows pushed",
        "dead letters of flights", "dead letters of crew", "inserts written", "wide inserts written", "objects of the store checked", "records written",
        "parts that one process works on",
    ):  # fmt: skip
        assert outcome.happened[what], what
