"""Lowering of one rule: its delta plans and its head, over the columns of its matches."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations

from tidemill.datalog.dataflow.deltas import Steps, pairs
from tidemill.datalog.dataflow.lingering import INSTANTS, MET, OPEN
from tidemill.datalog.dataflow.plan import UNIT, DeltaPlan, Head, Passes, Reduce, RulePlan
from tidemill.datalog.dataflow.rule_columns import RuleColumns
from tidemill.datalog.dataflow.schema import KINDS, TIME
from tidemill.datalog.dataflow.witnessing import witness_of
from tidemill.datalog.lattices import TALLIES
from tidemill.datalog.logical.expressions import type_of
from tidemill.datalog.logical.forms import WIDEN, Call, Constant, Type, Variable
from tidemill.datalog.logical.partial import COUNTED, LOWER, UPPER, kind_of, merges

_SUMS = frozenset({"sum", "average", UPPER, LOWER})


class RuleLowering(RuleColumns):
    """Lowers one rule: a delta plan for each change, its head."""

    def plan(self) -> RulePlan:
        head_plan, reduce = self._head(), self._reduce()
        columns = self._columns()
        again = self._again(head_plan) if self.ages[0] >= 0 else None
        exact = self._exact or any(
            name not in INSTANTS for atom in self.atoms for name, _ in atom.lattices
        )
        return RulePlan(
            self.rule, self.scope, columns, tuple(self._deltas()), head_plan, reduce, exact, again,
            self._tells_apart(head_plan), witness_of(self),
        )  # fmt: skip

    def _tells_apart(self, head: Head) -> bool:
        """Whether no two matches derive one fact at an instant: it has the keys of all of theirs.

        A time is that of the fact only where it comes from one atom alone.
        """
        if head.outlives or head.time or head.asked or any(each.is_clock for each in self.atoms):
            return False
        known = {*head.copies[0].tolist(), *self.constants.values()}
        for number, atom in enumerate(self.atoms):
            if atom.predicate == UNIT:
                continue
            key = self.program.schemas[atom.predicate].key[1:]
            if any(self.own.get((number, place), -1) not in known for place in key):
                return False
            alone = len(self.atoms) == 1 and head.timed and "time" not in atom.suppressed
            if self.program.timed(atom.predicate) and not alone:
                return False
        return True

    # Delta plans.

    def _deltas(self) -> Iterable[DeltaPlan]:
        occurrences: dict[str, list[int]] = {}
        for number, atom in enumerate(self.atoms):
            if not atom.is_clock:
                occurrences.setdefault(atom.predicate, []).append(number)
        for predicate, numbers in occurrences.items():
            for size in range(1, len(numbers) + 1):
                for changed in combinations(numbers, size):
                    sign = 1 if size % 2 else -1
                    yield self._delta(predicate, sign, changed, None)
        for number, absent in enumerate(self.rule.absent):
            if not absent.is_clock:
                yield self._delta(self.cover(number, absent), -1, (), number)

    def _delta(
        self, source: str, sign: int, changed: tuple[int, ...], absent: int | None
    ) -> DeltaPlan:
        steps = Steps(self, absent)
        steps.begin_with(changed, absent)
        return self._followed(source, sign, steps, changed)

    def _again(self, head: Head) -> DeltaPlan:
        """From facts of the head to the matches that derive them."""
        steps = Steps(self, None)
        ends = self.program.schemas[self.rule.head.predicate].expiry
        copies = [(column, place) for column, place in head.copies.T.tolist() if place < ends]
        if len(head.time) == 1 and isinstance(head.time[0], Variable):
            column, kind = self.variables[head.time[0].name]
            copies += [(column, TIME)] if kind is Type.INT else []
        steps.begin_with_head(copies)
        return self._followed(self.rule.head.predicate, 1, steps, ())

    def _followed(
        self, source: str, sign: int, steps: Steps, changed: tuple[int, ...]
    ) -> DeltaPlan:
        """The delta plan that begins so: the atoms of most known columns first.

        Of those alike, an atom outside of the recursion comes first.
        """
        waiting = [
            number
            for number, atom in enumerate(self.atoms)
            if not atom.is_clock and number not in changed[:1]
        ]

        def choice(number: int) -> tuple[int, bool, int]:
            return steps.bound_places(number), not self.recurs(number), -number

        while waiting:
            chosen = max(waiting, key=choice)
            waiting.remove(chosen)
            steps.join(chosen, chosen in changed)
        steps.finish()
        assert steps.begin is not None
        return DeltaPlan(source, sign, steps.begin, tuple(steps.steps))

    # Heads.

    def _head(self) -> Head:
        head = self.rule.head
        schema = self.program.schemas[head.predicate]
        asked = head.predicate.startswith(MET)
        copies, computed = [], []
        terms = list(enumerate(zip(head.terms, schema.kinds, strict=True), 1))
        if schema.ordered and head.lattices:
            terms.append((schema.expiry + 1, (head.lattices[0][1][0], schema.lattices[0][1])))
        copies += self._handed
        if schema.ordered and schema.aged:
            copies.append((self.ages[1], schema.age))
        for at, (term, kind) in terms:
            known = self.variables.get(term.name) if isinstance(term, Variable) else None
            if isinstance(term, Constant) and kind in KINDS:
                copies.append((self._constant(term.value, kind), at))
            elif known is not None and known[1] is kind:
                copies.append((known[0], at))
            else:
                widened = kind is Type.FLOAT and type_of(term, self.rule.types) is Type.INT
                computed.append((at, Call(WIDEN, (term,)) if widened else term, kind))
        if self._passes_into >= 0 and not head.aggregates:
            copies.append((self._passes_into, schema.carried))
        return Head(
            copies=pairs(copies),
            computed=tuple(computed),
            time=head.time,
            expires=head.expires,
            timed="time" not in head.suppressed,
            expiring="expires" not in head.suppressed,
            outlives=self.rule.outlives and not asked,
            asked=asked,
            passes=self._passes(),
            ahead=self.rule.lingers and self.rule.outlives and not (asked or self._of_lives()),
        )

    def _of_lives(self) -> bool:
        return any(atom.predicate.startswith(OPEN) for atom in self.rule.atoms)

    def _passes(self) -> Passes | None:
        if self._passes_into < 0:
            return None
        sources = []
        for number, atom in enumerate(self.atoms):
            if self._passed(atom):
                schema = self.program.schemas[atom.predicate]
                head = self.rule.head
                dropped = atom.suppressed | head.suppressed | {name for name, _ in head.lattices}
                sources.append((self.own[number, schema.carried], dropped))
        return Passes(self._passes_into, tuple(sources))

    def _reduce(self) -> Reduce | None:
        head = self.rule.head
        if not head.aggregates or self.program.schemas[head.predicate].ordered:
            return None
        if self.program.schemas[head.predicate].carrying:
            return self._reduce_carried()
        types = self.rule.types
        linear = all(
            kind_of(name) in ("count", COUNTED)
            or (kind_of(name) in _SUMS and type_of(terms[0], types) is Type.INT)
            for name, terms in head.lattices
        )
        kinds = tuple(type_of(term, types) for _, terms in head.lattices for term in terms)
        by_time, merging = bool(head.time), merges(self.rule)
        timed = not by_time and self.program.timed(head.predicate)
        return Reduce(head.lattices, kinds, by_time, linear, merges=merging, timed=timed)

    def _reduce_carried(self) -> Reduce:
        """The lattices of a head, with whole numbers among floats as such."""
        head = self.rule.head
        assert not (merges(self.rule) and any(name in TALLIES for name, _ in head.lattices))
        lattices = []
        for name, terms in head.lattices:
            found = []
            for at, term in enumerate(terms):
                kind = self.program.lattice_type(head.predicate, name, at)
                widened = kind is Type.FLOAT and type_of(term, self.rule.types) is not Type.FLOAT
                found.append(Call(WIDEN, (term,)) if widened and name not in TALLIES else term)
            lattices.append((name, tuple(found)))
        floats = {
            name for name, _ in head.lattices
            if name == "sum" and self.program.lattice_type(head.predicate, name) is Type.FLOAT
        }  # fmt: skip
        return Reduce(tuple(lattices), (), bool(head.time), False, True, bool(floats))
