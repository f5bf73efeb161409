"""Proofs of what views derive, read from the history of their inputs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

from tidemill.catalog.directory import Directory, TicksOf, ViewOf
from tidemill.datalog.allowance import Allowance
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.logical.plan import logical_plan
from tidemill.datalog.logical.scans import Scan
from tidemill.datalog.proofs import Proof
from tidemill.datalog.records import Record
from tidemill.datalog.relevance import pattern_scan, relevant_patterns
from tidemill.datalog.ticking import TickHistory
from tidemill.errors import UsageError
from tidemill.host.questions import reasons
from tidemill.host.questions.crossing import Crossing
from tidemill.host.questions.histories import Columns, Histories
from tidemill.host.questions.limits import Reach
from tidemill.host.questions.working import Workers
from tidemill.rpc.messages import Explanation


class Prover:
    """Proofs of records, each exact at its instant; the same question has the same proof.

    A proof goes through other views as far as `reach`, and into those alone that `explains` says
    may be explained. Raises: BeforeSince for history that is let go; NotYet; Exhausted.
    """

    def __init__(
        self,
        directory: Directory,
        histories: Histories,
        workers: Workers,
        reach: Reach,
        explains: Callable[[str], bool] = lambda view: True,
    ) -> None:
        self._directory = directory
        self._histories = histories
        self._workers = workers
        self._reach = reach
        self._explains = explains

    async def prove(self, view: ViewOf, asked: Record, at: int) -> Explanation:
        """The proof of a record that is present at an instant, or that it is not."""
        found = await self._proof(view, asked, at)
        if isinstance(found, Explanation):
            return found
        views = self._directory.views()
        crossing = Crossing(views, self._explains, self._below, self._inputs_in, self._reach)
        await crossing.extend(found, view, at)
        return await self._workers.run(self._workers.allowance(), reasons.proved, asked, found, at)

    async def _inputs_in(self, proof: Proof) -> list[Proof]:
        return await self._workers.run(self._workers.allowance(), reasons.inputs_in, proof)

    async def _below(self, view: ViewOf, record: Record, at: int) -> Proof | None:
        found = await self._proof(view, record, at)
        return found if isinstance(found, Proof) else None

    async def _proof(self, view: ViewOf, asked: Record, at: int) -> reasons.Found:
        """The proof down to the inputs of one view."""
        allowance = self._workers.allowance()
        if view.ticks is not None:
            async with self.ticks_of(view, view.ticks, asked, at, allowance) as found:
                history, asked, node = found
                return await self._workers.reason(
                    allowance, reasons.proof_in_ticks, history, asked, at, node
                )
        scans = await self._workers.run(allowance, _scans_of, view.program, asked)
        inputs = await self.inputs_of(view, asked, at, at, scans, allowance)
        return await self._workers.reason(allowance, reasons.proof, view.program, inputs, asked, at)

    async def inputs_of(
        self,
        view: ViewOf,
        asked: Record,
        at: int,
        until: int,
        scans: Mapping[str, Scan],
        allowance: Allowance,
    ) -> dict[str, Columns]:
        """The rows of the inputs of a view that may matter for a record, up to an instant."""
        begins = at if asked.time is None else max(0, min(at, asked.time))
        begins = max(0, begins - self._reach.history_ms)
        return await self._histories.read(view.inputs, begins, until, scans, allowance)

    @asynccontextmanager
    async def ticks_of(
        self, view: ViewOf, ticks: TicksOf, asked: Record, at: int, allowance: Allowance
    ) -> AsyncIterator[tuple[TickHistory, Record, int]]:
        """The ticks that a record may come from, the record in them, and its node; until the end
        of the body.

        With several nodes the first argument of a record names the node. Raises: UsageError.
        """
        node = 0
        if ticks.plan.nodes > 1 and asked.predicate in view.outputs:
            number, *rest = asked.arguments or (None,)
            if type(number) is not int or not 0 <= number < ticks.plan.nodes:
                raise UsageError(
                    f"{asked}: the first argument names the node, 0 to {ticks.plan.nodes - 1}",
                    reason="UnknownNode",
                )
            node, asked = number, replace(asked, arguments=tuple(rest))
        begins = max(0, at - self._reach.history_ms)
        async with self._histories.of_ticks(view, ticks, begins, at, allowance) as history:
            yield history, asked, node


def _scans_of(program: CheckedProgram, asked: Record) -> dict[str, Scan]:
    """For each input what a proof of the record can depend on: nothing of those that are not
    there.
    """
    patterns = relevant_patterns(logical_plan(program).rules, asked.predicate, asked.arguments)
    return {
        name: pattern_scan(program, name, patterns.get(name, ()))
        for name in program.columns
        if name not in program.derived
    }
