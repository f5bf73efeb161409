"""A plain recursion kept up to date by differences of its rounds, on numbers
(`tidemill.arrangement.loops`).

For components of predicates of one or two columns whose rules compute nothing and can be joined two
at a time without ever wanting more than two variables: closures, same generation, reachability from
a set. Their facts neither end nor carry anything. Where kept matches cost a kilobyte for each way
to derive a fact, rounds cost some words for each fact; facts that nobody looks at one by one stay
columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tidemill.datalog.allowance import row_bytes
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.incremental.chains import ChainBuilder, Words, chain_of
from tidemill.datalog.incremental.changes import FactBlock, Numbering
from tidemill.datalog.incremental.facts import Value
from tidemill.datalog.incremental.lent import Olds
from tidemill.datalog.incremental.owing import OwingTable
from tidemill.datalog.incremental.surroundings import Present
from tidemill.datalog.incremental.unit import Reporter
from tidemill.datalog.limits import LimitPassed, Limits
from tidemill.datalog.logical.forms import Constant, RuleForm, Variable
from tidemill.datalog.tables import Key
from tidemill.errors import Exhausted, UsageError

if TYPE_CHECKING:  # importing it imports numba
    from tidemill.arrangement.loops import Collection, Computation, Input, Output

_KINDS = frozenset({"int", "float", "text", "bool"})


def loops(
    forms: Sequence[RuleForm],
    predicates: Sequence[str],
    checked: CheckedProgram,
    expiring: frozenset[str],
) -> bool:
    """Whether the rules of a recursive component can be kept by rounds."""
    read = {name for form in forms for name in form.reads} | set(predicates)
    if checked.ticked or any(
        name in checked.carries_time or name in expiring or checked.lattices_of(name)
        for name in read
    ):
        return False
    kinds = {name: [kind for _, kind in checked.columns[name]] for name in read}
    if any(not 1 <= len(of) <= 2 or not _KINDS.issuperset(of) for of in kinds.values()):
        return False
    return all(_loops(form, kinds) for form in forms)


def _loops(form: RuleForm, kinds: Mapping[str, Sequence[str]]) -> bool:
    head = form.head
    plain = not (head.time or head.expires or head.lattices or head.suppressed or form.absent)
    if not plain or form.conditions:
        return False
    if any(atom.is_clock or atom.lattices or atom.suppressed for atom in form.atoms):
        return False
    of: dict[str, set[str]] = {}
    places = [(atom.terms, kinds[atom.predicate]) for atom in form.atoms]
    for terms, columns in (*places, (head.terms, kinds[head.predicate])):
        for term, kind in zip(terms, columns, strict=True):
            if isinstance(term, Variable):
                of.setdefault(term.name, set()).add(kind)
            elif isinstance(term, Constant):
                if _kind_of(term.value) != kind:
                    return False
            elif terms is head.terms:
                return False
    if any(len(found) > 1 for found in of.values()):
        return False  # a whole number would have to be widened on the way
    return chain_of(form) is not None


def _kind_of(value: Any) -> str:
    return {int: "int", float: "float", str: "text", bool: "bool"}.get(type(value), "")


class LoopedUnit:
    """The rules of one recursive component, as a computation whose epochs are the instants with
    changes.

    Values are numbered when they first come and keep their numbers. Cost of a change: that of the
    facts that come and go, and of the rounds in which they do.
    """

    recursive = True
    waits_for_all = True

    def __init__(
        self,
        component: Sequence[str],
        forms: Sequence[RuleForm],
        present: Present,
        reporter: Reporter,
        limits: Limits,
        number: int,
    ) -> None:
        self.component = tuple(component)
        self.forms = tuple(forms)
        self.number = number
        self.level = 0
        self.stratum = 0
        self.scheduled = False
        self.runs = 0
        self.seconds = 0.0
        self.present = present
        self.inbox: dict[str, Olds] = {}
        self._reporter = reporter
        self._limits = limits
        self._reads = {name for form in forms for name in form.reads} - set(component)
        self._columns = {
            name: tuple(kind for _, kind in present.checked.columns[name])
            for name in (*self._reads, *component)
        }
        self._given: dict[tuple[str, Key], set[Any]] = {}
        self._moved: dict[tuple[str, Key], bool] = {}
        self._kinds = {kind: Numbering(kind) for kind in sorted(_KINDS)}
        self._numberings = {
            name: tuple(self._kinds[kind] for kind in kinds)
            for name, kinds in self._columns.items()
        }
        self._tables = {name: OwingTable(name, self._columns[name]) for name in component}
        present.tables.update(self._tables)
        self._computation: Computation | None = None
        self._inputs: dict[str, Input] = {}
        self._outputs: dict[str, Output] = {}
        self._epoch = 0

    @property
    def reads(self) -> set[str]:
        """The predicates of other units and inputs that the rules read."""
        return self._reads

    @property
    def bytes_held(self) -> int:
        """Bytes of the histories of the rounds."""
        return 0 if self._computation is None else self._computation.bytes_held

    def monotone_in(self, predicate: str) -> bool:
        """Always: more facts can only mean more."""
        return True

    def begin(self) -> None:
        """Derive what needs no facts: nothing."""

    def support(self, predicate: str, key: Key, source: Any, value: Value) -> None:
        """An input fact of the component."""
        sources = self._given.setdefault((predicate, key), set())
        if not sources:
            self._moved[predicate, key] = True
        sources.add(source)
        self._reporter.schedule(self)

    def withdraw(self, predicate: str, key: Key, source: Any) -> None:
        """An input fact of the component is gone."""
        sources = self._given[predicate, key]
        sources.discard(source)
        if not sources:
            del self._given[predicate, key]
            self._moved[predicate, key] = False
        self._reporter.schedule(self)

    def run(self) -> None:
        """Let the changes of the inputs go through the rounds."""
        self.runs += 1
        timer = self.present.timer
        began = timer() if timer is not None else 0.0
        self._follow()
        if timer is not None:
            self.seconds += timer() - began

    # Facts as numbers.

    def _pair(self, predicate: str, key: Key) -> tuple[int, int]:
        first, *others = self._numberings[predicate]
        return first.number(key[1]), others[0].number(key[2]) if others else 0

    def _follow(self) -> None:
        from tidemill.arrangement.loops import Changes  # imports numba

        if self._computation is None:
            self._computation = self._built()
        rows: dict[str, list[tuple[int, int, int]]] = {}
        for predicate, olds in self.inbox.items():
            table = self.present.table(predicate)
            for key, old in olds.items():
                here = table.get(key) is not None
                if here != (old is not None):
                    pair = self._pair(predicate, key)
                    rows.setdefault(predicate, []).append((*pair, 1 if here else -1))
        self.inbox = {}
        moved, self._moved = self._moved, {}
        for (predicate, key), here in moved.items():
            rows.setdefault(predicate, []).append((*self._pair(predicate, key), 1 if here else -1))
        changes = {}
        for predicate, found in rows.items():
            columns = np.array(found, np.int64).T
            changes[self._inputs[predicate]] = Changes.of(*columns)
        before = self.bytes_held
        try:
            self._computation.step(self._epoch, changes)
        except UsageError as error:
            raise LimitPassed(
                f"evaluation given up: no fixed point of {', '.join(self.component)} within "
                f"{self._limits.rounds} rounds",
                reason="LimitPassed", limit="rounds", predicate=self.component[0],
            ) from error  # fmt: skip
        except Exhausted as error:
            allowance = self.present.around.allowance
            allowance.require(self.bytes_held + int(str(error.details["wanted"])))
            raise
        self.present.around.allowance.take(self.bytes_held - before)
        self._epoch += 1
        for predicate, output in self._outputs.items():
            taken = output.take()
            self._change(predicate, taken.keys, taken.vals, taken.diffs)

    def _change(
        self, predicate: str, first: Words, second: Words, diffs: npt.NDArray[np.int64]
    ) -> None:
        """Change the facts of a predicate, and tell who reads them."""
        numberings, table = self._numberings[predicate], self._tables[predicate]
        numbers = (first, second)[: len(numberings)]
        block = FactBlock(self.present.now, predicate, numberings, numbers, diffs)
        if not len(block):
            return
        self.present.around.allowance.take(len(block) * row_bytes(len(numberings)))
        table.owe(block)
        self._reporter.changed_together(self, block, table.pay)
        if len(table) > self._limits.rows:
            raise LimitPassed(
                f"evaluation given up: {predicate} has more than {self._limits.rows} rows",
                reason="LimitPassed", limit="rows", predicate=predicate,
            )  # fmt: skip

    # The computation.

    def _built(self) -> Computation:
        from tidemill.arrangement.loops import Computation  # imports numba

        computation = Computation(self.present.around.allowance.room)
        loop = computation.loop(self._limits.rounds)
        known: dict[str, Collection] = {}
        given: dict[str, Collection] = {}
        for name in sorted((*self._reads, *self.component)):
            self._inputs[name] = computation.input()
            entered = loop.enter(self._inputs[name].distinct())
            (given if name in self.component else known)[name] = entered
        variables = {name: loop.variable() for name in self.component}
        known.update(variables)
        builder = ChainBuilder(known, self._columns, lambda kind, of: self._kinds[kind].number(of))
        made: dict[str, list[Collection]] = {name: [] for name in self.component}
        for form in self.forms:
            made[form.head.predicate].append(builder.derived(form))
        results = {name: given[name].concat(*parts).distinct() for name, parts in made.items()}
        for name, result in results.items():
            variables[name].set(result)
        for name, result in results.items():
            self._outputs[name] = computation.output(loop.leave(result))
        return computation


__all__ = ["LoopedUnit", "loops"]
