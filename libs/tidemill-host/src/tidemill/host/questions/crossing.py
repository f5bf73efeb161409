"""Proofs that go on behind the border of a view: what it reads may be what another view derives."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

from tidemill.catalog.directory import ViewOf
from tidemill.datalog.proofs import Proof
from tidemill.datalog.records import Record
from tidemill.errors import BeforeSince, NotYet
from tidemill.host.questions.limits import Reach


class Crossing:
    """Extends a proof at each input that another view derives, by its proof there at that instant.

    A view that the asker may not explain is named and not entered. So is a view behind the last
    border, and one that no longer has the history of that instant. No view derives its own input,
    so this ends. Cost: that of a question of why for each fact.
    """

    def __init__(
        self,
        views: Sequence[ViewOf],
        explains: Callable[[str], bool],
        prove: Callable[[ViewOf, Record, int], Awaitable[Proof | None]],
        inputs_in: Callable[[Proof], Awaitable[Sequence[Proof]]],
        reach: Reach,
    ) -> None:
        """`inputs_in` gives the parts of a proof that are inputs; a proof may have very many."""
        self._prove = prove
        self._inputs_in = inputs_in
        self._explains = explains
        self._reach = reach
        self._derived: Mapping[str, tuple[ViewOf, str]] = {
            readable.collection: (view, predicate)
            for view in views
            for predicate, readable in view.outputs.items()
        }
        self._found: dict[tuple[str, str, int], Proof | None] = {}

    async def extend(self, proof: Proof, view: ViewOf, at: int) -> None:
        """Change `proof`, of a record of `view`, in its place."""
        waiting = deque([(proof, view, 0)])
        while waiting:
            part, within, depth = waiting.popleft()
            for leaf in await self._inputs_in(part):
                readable = None
                if leaf.record is not None:
                    readable = within.inputs.get(leaf.record.predicate)
                if readable is None or readable.collection not in self._derived:
                    continue
                below = await self._below(leaf, readable.collection, at, depth)
                if below is not None:
                    waiting.append((below, self._derived[readable.collection][0], depth + 1))

    async def _below(self, leaf: Proof, collection: str, at: int, depth: int) -> Proof | None:
        """The proof that was put below a leaf; None if there is none, or it has been there
        before.
        """
        view, predicate = self._derived[collection]
        assert leaf.record is not None
        record = replace(leaf.record, predicate=predicate)
        instant = int(leaf.at) if 0 <= leaf.at <= at else at
        key = (collection, str(record), instant)
        known = key in self._found
        if not known:
            far = depth >= self._reach.views or len(self._found) >= self._reach.facts
            if far or not self._explains(view.name):
                leaf.place = f"of the view {view.name}: ask why '{view.name}/{record}'"
                return None
            try:
                self._found[key] = await self._prove(view, record, instant)
            except (NotYet, BeforeSince):
                self._found[key] = None
        found = self._found[key]
        if found is None:
            leaf.place = f"of the view {view.name}, which has no history of it"
            return None
        leaf.kind, leaf.place, leaf.solutions = "view", view.name, [[found]]
        return None if known else found
