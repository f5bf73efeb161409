"""Ad-hoc questions: a goal over the facts of one instant, through a program that no view maintains."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tidemill.datalog.evaluation.failures import Failures
from tidemill.datalog.evaluation.state import EngineState
from tidemill.datalog.goals import Answer, Goal, ask
from tidemill.datalog.presence import BEGINNING, Presence
from tidemill.datalog.records import Record
from tidemill.datalog.scratch.engine import Engine, load


def answer(
    engine: Engine,
    goal: Goal,
    facts: Mapping[str, Iterable[Record]],
    at: int,
    state: EngineState | None = None,
) -> list[Answer]:
    """The records that match the goal at the instant `at`, by their text.

    `facts` are the input records present then; only predicates that the goal needs are evaluated.
    Solutions that outlive their facts are in the answer as far as `state`, the state just before
    `at`, has them. Raises: LimitPassed. Cost: that of the program over the facts of one instant.
    """
    failures = Failures()
    given = {
        name: load(
            engine.checked, name, [Presence(record) for record in records], BEGINNING, at + 1,
            engine.lattices, failures,
        )
        for name, records in facts.items()
    }  # fmt: skip
    strata = engine.complete(given, BEGINNING, at + 1, state, only={goal.predicate}, frozen=True)
    found = engine.result(strata, (goal.predicate,)).presences[goal.predicate]
    return ask(goal, (presence.record for presence in found))
