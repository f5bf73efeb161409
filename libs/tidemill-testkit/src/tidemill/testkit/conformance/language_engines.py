"""Programs of cases on the dataflow: presences by predicate, and the error collection."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.logical.plan import LogicalPlan, logical_plan
from tidemill.datalog.presence import ErrorPresence, Instant, Presence
from tidemill.datalog.records import Record
from tidemill.datalog.strategy import Strategy
from tidemill.datalog.ticks import Message
from tidemill.testkit.conformance.language_inputs import Delivery
from tidemill.testkit.conformance.registry import Options
from tidemill.testkit.conformance.values import CaseError


@dataclass(frozen=True, slots=True)
class Answer:
    """The facts and errors of a program below `upper`, as an engine found them."""

    presences: Mapping[str, Sequence[Presence]]
    errors: Sequence[ErrorPresence]


def evaluate_case(
    options: Options, checked: CheckedProgram, deliveries: Sequence[Delivery], upper: int
) -> Answer:
    """The program over the deliveries, one after the other.

    Raises: CaseError for a construct that the dataflow does not evaluate.
    """
    if options.engine == "dataflow":
        return _in_one_process(options, checked, deliveries, upper, None)
    from tidemill.testkit.conformance.language_ranges import evaluated_in_windows
    from tidemill.testkit.ranges.task import RangeSettings  # loads loops

    plan = replace(logical_plan(checked), rules=(), components=())
    given = _in_one_process(options, checked, deliveries, upper, plan).presences
    settings = RangeSettings(strategy_of(options))
    found = evaluated_in_windows(checked, deliveries, upper, settings, options.evaluator)
    return Answer({**given, **found.presences}, found.errors)


def _in_one_process(
    options: Options, checked: CheckedProgram, deliveries: Sequence[Delivery], upper: int,
    plan: LogicalPlan | None,
) -> Answer:  # fmt: skip
    """The answer of one engine. Raises: CaseError."""
    from tidemill.datalog.dataflow import DataflowEngine, NotInDataflow  # loads loops
    from tidemill.datalog.dataflow.evaluating import presences_of, undeclared

    carrying = {name for _, delivered in deliveries for name in undeclared(checked, delivered)}
    told: dict[str, list[tuple[Instant, Record, int]]] = {}
    try:
        engine = DataflowEngine(
            checked, plan=plan, strategy=strategy_of(options), carrying=carrying,
            told=(*checked.derived, *checked.inputs),
        )  # fmt: skip
        for frontier, delivered in (*deliveries, (upper, {})):
            if frontier > engine.upper:
                for name, each in engine.step(int(min(frontier, upper))).items():
                    told.setdefault(name, []).extend(each.records())
            for name, presences in delivered.items():
                engine.feed_presences(name, presences)
    except NotInDataflow as missing:
        raise CaseError(f"the dataflow does not evaluate {missing}") from None
    names = dict.fromkeys((*checked.derived, *told))
    found = {name: presences_of(told.get(name, ())) for name in names}
    return Answer(found, engine.errors())


def strategy_of(options: Options) -> Strategy:
    """The strategy of the options. Raises: CaseError."""
    if options.strategy == "strata":
        return "strata"
    if options.strategy == "retraction":
        return "retraction"
    raise CaseError(f"no such strategy: {options.strategy}")


def by_instant(inputs: Mapping[str, Sequence[Presence]]) -> list[Delivery]:
    """Facts delivered at the instants at which they begin, one instant after the other."""
    steps: dict[Instant, dict[str, list[Presence]]] = {}
    for name, presences in inputs.items():
        for presence in presences:
            steps.setdefault(presence.start, {}).setdefault(name, []).append(presence)
    return sorted(steps.items(), key=lambda step: step[0])


@dataclass(frozen=True, slots=True)
class Held:
    """The sum of the changes of all ticks so far."""

    held: Mapping[str, Mapping[Record, int]]
    messages: tuple[Message, ...]

    def records(self, predicate: str) -> list[Record]:
        """The records of a predicate."""
        return list(self.held.get(predicate, ()))


class Ticks:
    """The ticks of one program at one node, of which each is given all records of its inputs.

    Raises: CaseError for a construct that the dataflow does not evaluate.
    """

    def __init__(self, options: Options, checked: CheckedProgram) -> None:
        from tidemill.datalog.dataflow import NotInDataflow  # loads loops
        from tidemill.datalog.dataflow.ticker import DataflowTicker

        try:
            self._ticker = DataflowTicker(checked, strategy=strategy_of(options))
        except NotInDataflow as missing:
            raise CaseError(f"the dataflow does not evaluate {missing}") from None
        self._watched = checked.inputs.keys() - set(checked.derived)
        self._given: Counter[Record] = Counter()
        self._held: dict[str, Counter[Record]] = {}

    def tick(self, at: int, inputs: Mapping[str, Sequence[Record]]) -> Held:
        """The next tick, at the instant `at`."""
        given = Counter(record for records in inputs.values() for record in records)
        come, gone = _by_predicate(given - self._given), _by_predicate(self._given - given)
        self._given = given
        told = self._ticker.tick(at, come, gone)
        for record, diff in told.facts:
            self._held.setdefault(record.predicate, Counter())[record] += diff
        held = {name: +records for name, records in self._held.items()}
        mine = {name: Counter(inputs.get(name, ())) for name in self._watched}
        return Held({**mine, **held}, told.messages)


def _by_predicate(records: Counter[Record]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for record in records.elements():
        found.setdefault(record.predicate, []).append(record)
    return found
