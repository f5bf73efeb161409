"""The placement of a program: which rules are evaluated range by range under which key.

Components are taken in their order. Each joins a fragment in which its matches and its facts are in
one range, or begins one. Rules of which only the matches are in one range are split. A component
for which nothing helps is one task. Facts in all ranges are avoided before they are allowed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, product

from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.dataflow.ticked_plan import given_apart
from tidemill.datalog.logical.forms import RuleForm
from tidemill.datalog.logical.plan import Component, LogicalPlan, logical_plan
from tidemill.datalog.placement.cutting import cut, undivided
from tidemill.datalog.placement.division import keys_of
from tidemill.datalog.placement.drafts import (
    CHOICES_MAX,
    Draft,
    State,
    read_in_place,
    subsets,
    ways_of,
)
from tidemill.datalog.placement.fact_lattices import FactLattices
from tidemill.datalog.placement.grouping import grouped
from tidemill.datalog.placement.heavy import HeavyKeys
from tidemill.datalog.placement.pieces import Pieces, pieces_of
from tidemill.datalog.placement.places import HeavyKey, Placement, Positions
from tidemill.datalog.placement.reasons import TICKS, reason_of, together
from tidemill.datalog.placement.rounds import HELD, rounds_of
from tidemill.datalog.placement.sizes import Sizes
from tidemill.datalog.placement.splitting import CROSSING, Columns, Halves, split


def placement_of(
    checked: CheckedProgram,
    carrying: Collection[str] = frozenset(),
    rows: Mapping[str, int] | None = None,
    heavy: Iterable[HeavyKey] = (),
    *,
    rounds: bool = True,
    moves: bool = True,
) -> Placement:
    """The places of a program's facts. Facts of the inputs in `carrying` may carry any lattice.

    Without `rounds` a recursion that hands no argument on is one task. Without `moves` inputs are
    in all ranges wherever facts would have to change theirs otherwise.

    `rows` are about those of inputs, and `heavy` keys of inputs that one range should not have all
    to itself. Pure: the same for the same arguments. Cost: polynomial in the text.
    """
    plan = given_apart(logical_plan(checked), [*checked.inputs])
    if checked.ticked:
        return undivided(plan, *TICKS)
    sizes, known = Sizes(plan, rows or {}), HeavyKeys(plan, heavy)
    plain: tuple[int, Placement] | None = None
    apart: dict[int, frozenset[str]] = {}
    while True:
        placing = _placed(plan, carrying, sizes, apart, rounds, moves)
        pieces = [pieces_of(draft, known) for draft in placing.drafts]
        found = sum(len(each.undivided) for each in pieces), placing.placement(pieces)
        plain = plain or found
        more = placing.in_the_way(pieces)
        if not more.keys() - apart.keys():  # an exchange that does not help is not worth it
            return found[1] if found[0] < plain[0] else plain[1]
        apart = more | apart


def _placed(
    plan: LogicalPlan,
    carrying: Collection[str],
    sizes: Sizes,
    apart: Mapping[int, frozenset[str]],
    rounds: bool,
    moves: bool,
) -> _Placing:
    """The attempt in which all that has to be one task is."""
    alone: set[str] = set()
    while True:
        placing = _Placing(plan, carrying, sizes, alone, apart, rounds, moves)
        missing = placing.place()
        if not missing:
            return placing
        alone |= missing


class _Placing:
    """One attempt, in which the predicates in `alone` and all above them are one task.

    Rules in `apart`, by their place in the plan, are split though they need not be. Matches of
    their bodies are divided by the variables that are given.
    """

    def __init__(
        self, plan: LogicalPlan, carrying: Collection[str], sizes: Sizes, alone: set[str],
        apart: Mapping[int, frozenset[str]], rounds: bool, moves: bool,
    ) -> None:  # fmt: skip
        self._apart_by = apart
        self._by_rounds, self._moves = rounds, moves
        self._keys: dict[str, frozenset[str]] = {}
        self._sizes = sizes
        self._plan = plan
        self._names = carrying
        self._lattices = FactLattices(plan, carrying)
        self._columns = dict(plan.checked.columns)
        self.drafts: list[Draft] = []
        self._where: dict[str, int] = {}
        self._rules = {id(rule): at for at, rule in enumerate(plan.rules)}
        self._matches: dict[str, str] = {}
        self._lacks: dict[str, str] = {}
        self._alone = set(alone)
        for component in plan.components:
            if any(self._alone & rule.reads for rule in component.rules):
                self._alone.update(component.predicates)

    def place(self) -> set[str]:
        """Place all components; the predicates that have to be with those that read them."""
        above = []
        for component in self._plan.components:
            if not component.rules:
                continue
            if self._alone.isdisjoint(component.predicates):
                self._component(component)
            else:
                above.append(component)
        if above:
            names = sorted(read_in_place(above, self._lattices))
            reason, advice = together(names)
            self.drafts.append(Draft("one task", self._sizes, above, reason=reason, advice=advice))
        missing = set()
        for draft in self.drafts:
            missing |= read_in_place(draft.components, self._lattices) - draft.predicates
        return missing

    def in_the_way(self, pieces: Iterable[Pieces]) -> dict[int, frozenset[str]]:
        """The rules that keep heavy keys in one range, each with the key of its matches.

        They can be split: what matches their bodies is where other variables say.
        """
        found = {}
        for draft, each in zip(self.drafts, pieces, strict=True):
            stuck = {id(rule) for one in each.stuck if not one.recursive for rule in one.rules}
            ways = zip(draft.rules, draft.states[0].rules, strict=True) if stuck else ()
            for rule, way in ways:
                if id(rule) in stuck & self._rules.keys():
                    found[self._rules[id(rule)]] = way.variables
        return found

    def placement(self, pieces: Sequence[Pieces]) -> Placement:
        """The placement that was found, with pieces of heavy keys for each draft."""
        checked = replace(self._plan.checked, columns=self._columns)
        types = dict(checked.lattice_types)
        for name in self._columns:
            if name.startswith((CROSSING, HELD)):
                base = name.rpartition(":")[2]
                types.update({(name, k): v for (p, k), v in types.items() if p == base})
        components = tuple(each for draft in self.drafts for each in draft.components)
        for rule in (rule for each in components for rule in each.rules):
            parts = [n for n, _ in rule.head.lattices if n.startswith("#")]
            types.update({(rule.head.predicate, name): ("int",) for name in parts})
        plan = self._plan.remade(components, replace(checked, lattice_types=types))
        found = cut(plan, self.drafts, pieces, self._names)
        return replace(found, matches=self._matches)

    def _component(self, component: Component) -> None:
        if not self._moves and self._stays(component):
            return
        whole = not any(self._key_of(rule) for rule in component.rules)
        for replicate in (False, True):
            if whole and self._joined(component, replicate):
                return
            if self._split(component, replicate):
                return
            if not whole and self._joined(component, replicate):
                return
        if not self._rounds(component):
            self._one_task(component)

    def _key_of(self, rule: RuleForm) -> frozenset[str]:
        """The key of the matches of a rule that is split for heavy keys; empty for any other."""
        return self._apart_by.get(self._rules.get(id(rule), -1), frozenset())

    def _stays(self, component: Component) -> bool:
        """Place a component where the facts that it reads are; whether there is such a place."""
        ways = (self._met, self._begun)
        return any(way(component, each) for way in ways for each in (False, True))

    def _joined(self, component: Component, replicate: bool) -> bool:
        """Add a component to a fragment by ranges, or begin one with it; whether one is found."""
        return self._met(component, replicate) or self._begun(component, replicate)

    def _met(self, component: Component, replicate: bool) -> bool:
        """Add a component to a fragment by ranges; whether one is found."""
        first = self._first(component)
        return any(
            number >= first and draft.way == "ranges" and self._add(number, component, replicate)
            for number, draft in enumerate(self.drafts)
        )

    def _begun(self, component: Component, replicate: bool) -> bool:
        """Begin a fragment by ranges with a component; whether it can be one."""
        draft = Draft("ranges", self._sizes)
        states = self._states(draft, component, replicate)
        if states:
            self.drafts.append(draft)
            self._take(len(self.drafts) - 1, component, states)
        return bool(states)

    def _add(self, number: int, component: Component, replicate: bool) -> bool:
        states = self._states(self.drafts[number], component, replicate)
        if states:
            self._take(number, component, states)
        return bool(states)

    def _states(self, draft: Draft, component: Component, replicate: bool) -> list[State]:
        states = draft.states_with(component, self._lattices, replicate)
        key = self._keys.get(component.predicates[0])
        return [each for each in states if key in (None, each.rules[-1].variables)]

    def _take(self, number: int, component: Component, states: list[State]) -> None:
        draft = self.drafts[number]
        draft.components.append(component)
        draft.states = states
        self._where.update(dict.fromkeys(component.predicates, number))

    def _first(self, component: Component) -> int:
        """The first fragment in which everything that a component reads is known."""
        read = {name for rule in component.rules for name in rule.reads}
        known = [
            self._where[name] + name.startswith(CROSSING) for name in read & self._where.keys()
        ]
        return max(known, default=0)

    def _rounds(self, component: Component) -> bool:
        """Add a recursion as a fragment by rounds; whether it has that form."""
        if not (component.recursive and self._by_rounds):
            return False
        found = rounds_of(component, self._rules, self._columns, self._lattices, self._sizes)
        if found.draft is None:
            self._lacks[component.predicates[0]] = found.lacks
            return False
        self._columns.update(found.columns)
        for part in found.outside:
            self._one_task(Component((part.head.predicate,), (part,), False, component.stratum))
        self._where.update(dict.fromkeys(found.draft.predicates, len(self.drafts)))
        self.drafts.append(found.draft)
        return True

    def _one_task(self, component: Component) -> None:
        first = self._first(component)
        for number, draft in enumerate(self.drafts):
            if number >= first and draft.way == "one task":
                break
        else:
            number = len(self.drafts)
            reason, advice = reason_of(component, self._lacks.get(component.predicates[0], ""))
            self.drafts.append(Draft("one task", self._sizes, reason=reason, advice=advice))
        self._take(number, component, [State()])

    # Rules whose facts are not where their matches are.

    def _split(self, component: Component, replicate: bool) -> bool:
        """Split the rules that cannot be where the facts of their heads are, and place both.

        False where nothing is gained: no part of it would be evaluated by ranges.
        """
        apart = self._apart(component, replicate)
        found = [self._halves(rule) for rule in apart]
        if not found or None in found:
            return False
        halves = [each for each in found if each is not None]
        parts = [
            Component((part.head.predicate,), (part,), False, component.stratum)
            for part, _, _ in halves
        ]
        self._columns.update({p.head.predicate: columns for p, _, columns in halves})
        before = len(self.drafts), [(d.components[:], d.states) for d in self.drafts]
        divided = [self._joined(part, replicate) for part in parts]
        rests = {id(rule): rest for rule, (_, rest, _) in zip(apart, halves, strict=True)}
        rules = tuple(rests.get(id(rule), rule) for rule in component.rules)
        rest = replace(component, rules=rules)
        if not any(divided) and len(apart) == len(component.rules):
            return self._undo(before, parts)
        for part, done in zip(parts, divided, strict=True):
            if not done and not replicate and any(keys_of(part.rules[0], {})):
                return self._undo(before, parts)
            if not done:
                self._one_task(part)
        if self._joined(rest, replicate):
            return True
        if not any(divided) or rest.recursive:
            return self._undo(before, parts)
        self._one_task(rest)
        return True

    def _undo(
        self, before: tuple[int, Sequence[tuple[list[Component], list[State]]]],
        parts: Iterable[Component],
    ) -> bool:  # fmt: skip
        size, known = before
        del self.drafts[size:]
        for draft, (components, states) in zip(self.drafts, known, strict=True):
            draft.components, draft.states = components, states
        for part in parts:
            self._where.pop(part.predicates[0], None)
            self._columns.pop(part.predicates[0], None)
        return False

    def _apart(self, component: Component, replicate: bool) -> list[RuleForm]:
        """The rules that have to be split: the fewest of a way to place the component."""
        best: list[RuleForm] | None = None
        for choice in _wanted(component, self._columns):
            ways = ways_of(component, choice, replicate)
            pairs = zip(component.rules, ways, strict=True)
            apart = [rule for rule, way in pairs if way is None or self._key_of(rule)]
            if any(not r.reads.isdisjoint(component.predicates) for r in apart):
                continue
            if best is None or len(apart) < len(best):
                best = apart
        return best or []

    def _halves(self, rule: RuleForm) -> Halves | None:
        found = self._halved(rule)
        if found is not None and (key := self._key_of(rule)):
            self._keys[found[0].head.predicate] = key
        return found

    def _halved(self, rule: RuleForm) -> Halves | None:
        place, reason = self._rules[id(rule)], ""
        if rule.head.aggregates:
            if self._key_of(rule):
                return None  # parts of a group change as often as it does: more work than it has
            reason = self._lattices.whole_groups(rule)
            if not reason and (halves := grouped(rule, place, self._columns, self._lattices)):
                return halves
        if not self._lattices.tells_apart(rule) or _counts_alone(rule):
            return None
        found = split(rule, place, self._columns)
        if found is not None and rule.head.aggregates:
            self._matches[found[0].head.predicate] = reason or "it has many columns"
        return found


def _wanted(component: Component, columns: Columns) -> Iterator[dict[str, Positions]]:
    """The places that facts of a component might have, if rules are split for that."""
    options = []
    for name in component.predicates:
        arity = len(columns[name])
        options.append([*subsets(range(1, arity + 1))] or [()])
    for found in islice(product(*options), CHOICES_MAX):
        yield dict(zip(component.predicates, found, strict=True))


def _counts_alone(rule: RuleForm) -> bool:
    """Whether nothing of an aggregating rule can be done before its matches meet."""
    head, alone = rule.head, len(rule.atoms) < 2 and not (rule.absent or rule.conditions)
    return head.aggregates and alone and not head.terms
