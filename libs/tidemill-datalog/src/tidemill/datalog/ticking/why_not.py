"""Reasons for an absence in a ticked program: for each rule the furthest, in its tick."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tidemill.datalog.allowance import Allowance
from tidemill.datalog.logical.forms import RuleForm
from tidemill.datalog.logical.plan import LogicalPlan, logical_plan
from tidemill.datalog.point_in_time import rows_of
from tidemill.datalog.records import Record
from tidemill.datalog.tables import Table
from tidemill.datalog.ticking.history import NodeHistory, TickHistory, TickNumber
from tidemill.datalog.why_not import Reason, Search, absent_input, rank


def why_not_in_ticks(
    history: TickHistory,
    record: Record,
    at: int,
    node: int = 0,
    *,
    upper: int,
    letters: Sequence[Record] = (),
    allowance: Allowance | None = None,
) -> list[Reason]:
    """For each rule whose head can be the record, why it is not there at the instant `at` at a
    node.

    Rules with `@next` are looked at in the tick before the last one at `at`. Rules with `@async`
    are looked at in the ticks that could have sent it: of several the one that came furthest.
    Cost: O(facts of the history) for each of these ticks.
    """
    if at >= upper:
        return [Reason(None, "not_definite", upper=upper)]
    asked = _Asked(history, allowance or Allowance(), upper, letters)
    if asked.search(node, record, at).present():
        return [Reason(None, "present")]
    reasons = [
        reason
        for form in asked.rules
        if form.head.predicate == record.predicate
        and (reason := asked.reason(form, record, at, node)) is not None
    ]
    return reasons or [absent_input(record, letters)]


class _Asked:
    """A question over a history: searches at single ticks of single nodes."""

    def __init__(
        self, history: TickHistory, allowance: Allowance, upper: int, letters: Sequence[Record]
    ) -> None:
        self._plan = logical_plan(history.program)
        self._allowance = allowance
        self._history = history
        self._upper = upper
        self._letters = letters
        self._tables: dict[int, Mapping[str, Table]] = {}

    @property
    def rules(self) -> Sequence[RuleForm]:
        """The rules of the program."""
        return self._plan.rules

    def search(self, node: int, record: Record, at: int) -> Search:
        """Looks for the record among the facts of a node at an instant."""
        if node not in self._tables:
            self._tables[node] = _tables_of(self._history.nodes[node])
        tables = self._tables[node]
        return _TickSearch(
            self._plan, self._allowance, record, at, self._upper, self._letters, tables
        )

    def reason(self, form: RuleForm, record: Record, at: int, node: int) -> Reason | None:
        """Why a rule does not give the record; None if its head can be no such record."""
        mine = self._history.nodes[node]
        number = mine.number_at(at)
        if form.deductive:
            search = self.search(node, record, at)
            return search.reason(form) if search.can_be(form) else None
        places: list[TickNumber] = []
        if number is not None:
            before = mine.places[: mine.first[number]][-1:]
            place = mine.places[number]
            places = before if form.next_tick else self._history.senders(place)
        wanted = record if form.next_tick else replace(record, arguments=(node, *record.arguments))
        found = [self._reason_in(form, wanted, place) for place in places]
        reasons = [reason for reason in found if reason is not None]
        if not places:
            return Reason(form.number, "no_tick")
        return max(reasons, key=rank, default=None)

    def _reason_in(self, form: RuleForm, record: Record, place: TickNumber) -> Reason | None:
        """Why a rule does not give the record in an earlier tick."""
        instant, node = self._history.instant(place), self._history.ran[place][0]
        search = self.search(node, record, instant)
        if not search.can_be(form):
            return None
        return replace(search.reason(form), tick=self._history.name(place))


def _tables_of(node: NodeHistory) -> dict[str, Table]:
    """All facts that the ticks of a node saw or derived, each with its presences."""
    return {name: Table(rows_of(found)) for name, found in node.presences().items()}


class _TickSearch(Search):
    """A search among facts that are known already."""

    def __init__(
        self,
        plan: LogicalPlan,
        allowance: Allowance,
        record: Record,
        at: int,
        upper: int,
        letters: Sequence[Record],
        tables: Mapping[str, Table],
    ) -> None:
        self._facts = tables
        super().__init__(plan, allowance, {}, record, at, upper, letters)

    def _every_fact(self) -> Mapping[str, Table]:
        return self._facts

    def _is_known(self, predicate: str) -> bool:
        return bool(self._table(predicate).rows)
