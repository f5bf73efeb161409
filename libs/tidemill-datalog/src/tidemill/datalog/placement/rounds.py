"""Recursion by rounds: one that hands no argument on, yet whose matches can be divided.

Each rule is split. Its first half matches facts where the variables of its key say, and derives.
Its derivations come back in the next round, to each place where facts of the head are matched, and
are merged there. So a fragment reads what it derives itself. A round begins from merged facts
alone, and no rule gives less for more: rounds end at the least fixed point.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tidemill.datalog.dataflow.rewrites import reading_rule
from tidemill.datalog.dataflow.schema import KINDS
from tidemill.datalog.inputs import ColumnType
from tidemill.datalog.logical.forms import AtomForm, RuleForm, Variable
from tidemill.datalog.logical.partial import GATHERED
from tidemill.datalog.logical.plan import Component, reads_any
from tidemill.datalog.placement.division import Division, division, keys_of
from tidemill.datalog.placement.drafts import Draft, State
from tidemill.datalog.placement.fact_lattices import FactLattices
from tidemill.datalog.placement.grouping import grouped
from tidemill.datalog.placement.places import Place, Positions
from tidemill.datalog.placement.sizes import Sizes
from tidemill.datalog.placement.splitting import CROSSING, Columns

HELD = "#held:"
"""Before a place and a predicate: its facts at another place than the first one."""
TAKES_BACK = "clocks, times and ends of their own may take back what a round has derived"
ROWS_MIN = 100_000
"""Rows of what a recursion reads below which one task has an answer before a few rounds have."""
FEW = "it reads few rows, which one task takes in less time than rounds begin"
NO_KEY = "facts of the recursion would be in all ranges, or in one"
CARRIES = "what its facts carry cannot be merged range by range"


@dataclass(frozen=True, slots=True)
class Rounds:
    """A recursion as a draft, the columns between its halves, or what it `lacks` for that.

    Rules `outside` are first halves that the draft reads, and are no part of it.
    """

    draft: Draft | None = None
    outside: tuple[RuleForm, ...] = ()
    columns: Mapping[str, tuple[tuple[str, ColumnType], ...]] = field(default_factory=dict)
    lacks: str = ""


def rounds_of(
    component: Component, places: Mapping[int, int], columns: Columns, lattices: FactLattices,
    sizes: Sizes,
) -> Rounds:  # fmt: skip
    """The draft of a recursion; `places` are those of its rules in the program, by identity.

    Pure. Cost: O(rules · keys).
    """
    lacks = _lacking(component, lattices) or _few(component, sizes)
    if lacks:
        return Rounds(lacks=lacks)
    ways = _ways(component, sizes)
    if ways is None:
        return Rounds(lacks=NO_KEY)
    found = _Halved(component, ways, columns)
    for rule, way in zip(component.rules, ways, strict=True):
        if not found.take(rule, way, places[id(rule)], lattices):
            return Rounds(lacks=CARRIES)
    return Rounds(found.draft(sizes), tuple(found.outside), found.columns)


def _lacking(component: Component, lattices: FactLattices) -> str:
    """Why rounds may take back what they have derived, or cannot merge it; empty if they can."""
    for rule in component.rules:
        clocked = any(a.is_clock for a in rule.atoms) or any(a.is_clock for a in rule.absent)
        if clocked or rule.remembers or rule.head.time or "time" in rule.head.suppressed:
            return TAKES_BACK
        if any(name == "expires" for atom in rule.atoms for name, _ in atom.lattices):
            return TAKES_BACK
        if not lattices.merged_by_sight(rule):
            return CARRIES
    return ""


def _few(component: Component, sizes: Sizes) -> str:
    """Whether what a recursion reads is counted, and has few rows."""
    read = {name for rule in component.rules for name in rule.reads} - {*component.predicates}
    few = sizes.counted and sum(map(sizes.of, read)) < ROWS_MIN
    return FEW if few else ""


def _ways(component: Component, sizes: Sizes) -> list[Division | None] | None:
    """The division of each rule: few rows in all ranges, few places of facts, then large keys.

    A rule that reads nothing of the recursion may have none.
    """
    used: set[tuple[str, Positions]] = set()
    found: list[Division | None] = []
    for rule in component.rules:
        options = [*_options(rule, component.predicates)]
        if not options and not reads_any(rule, component.predicates):
            found.append(None)
            continue
        if not options:
            return None

        def cost(way: Division, rule: RuleForm = rule) -> tuple[int, int, int]:
            copied = sum(sizes.of(name) for name in way.replicated)
            places = {*_places(rule, way, component.predicates)}
            return copied, len(used | places), -len(way.variables)

        best = min(options, key=cost)
        used.update(_places(rule, best, component.predicates))
        found.append(best)
    return found


def _options(rule: RuleForm, looped: Collection[str]) -> Iterator[Division]:
    """The ways to divide the matches of a rule in which facts of the recursion have a place."""
    for variables in dict.fromkeys(keys_of(rule, {})):
        way = division(rule, variables, {}, True)
        if way is not None and not {*way.replicated} & {*looped}:
            yield way


def _places(
    rule: RuleForm, way: Division, looped: Collection[str]
) -> Iterator[tuple[str, Positions]]:
    for atom, place in zip(rule.atoms, way.atoms, strict=True):
        if atom.predicate in looped and place is not None:
            yield atom.predicate, place.positions


class _Halved:
    """The halves of the rules of a recursion, as they are found."""

    def __init__(
        self, component: Component, ways: Sequence[Division | None], columns: Columns
    ) -> None:
        self.outside: list[RuleForm] = []
        self._component = component
        self._known = columns
        self.columns: dict[str, tuple[tuple[str, ColumnType], ...]] = {}
        self._places: dict[str, list[Positions]] = {name: [] for name in component.predicates}
        for rule, way in zip(component.rules, ways, strict=True):
            for name, place in _places(rule, way, component.predicates) if way else ():
                if place not in self._places[name]:
                    self._places[name].append(place)
        for name, places in self._places.items():  # one that no rule of the recursion reads
            if not places:
                places.append(tuple(range(1, len(columns[name]) + 1)))
        self._parts: list[tuple[RuleForm, Division]] = []
        self._rests: dict[str, list[RuleForm]] = {name: [] for name in component.predicates}

    def take(
        self, rule: RuleForm, way: Division | None, place: int, lattices: FactLattices
    ) -> bool:
        """Split a rule; False where it has no form."""
        name = rule.head.predicate
        if rule.head.aggregates:
            halves = grouped(rule, place, self._known, lattices)
            if halves is None:
                return False
            part, rest, between = halves
        else:
            between = self._known[name]
            crossing = f"{CROSSING}{place}:{name}"
            part = replace(rule, head=replace(rule.head, predicate=crossing))
            rest = reading_rule(name, crossing, between)
        if way is None:
            self.outside.append(part)
        else:
            atoms = tuple(map(self._met, part.atoms, way.atoms))
            self._parts.append((replace(part, atoms=atoms), way))
        self._rests[name].append(rest)
        self.columns[part.head.predicate] = between
        return True

    def _met(self, atom: AtomForm, place: Place | None) -> AtomForm:
        """An atom that reads facts of the recursion where its rule is matched."""
        if atom.predicate not in self._places or place is None:
            return atom
        return replace(atom, predicate=self._at(atom.predicate, place.positions))

    def _at(self, name: str, place: Positions) -> str:
        if place == self._places[name][0]:
            return name
        return f"{HELD}{','.join(map(str, place))}:{name}"

    def draft(self, sizes: Sizes) -> Draft:
        """The fragment: facts merged at each of their places, then what is matched with them."""
        components, ways = [], []
        stratum, placed = self._component.stratum, dict[str, Positions]()
        for name, places in self._places.items():
            for place in places:
                held = self._at(name, place)
                rests = tuple(
                    replace(rest, head=replace(rest.head, predicate=held))
                    for rest in self._rests[name]
                )
                self.columns[held] = self._known[name]
                for derived, rules in self._merged(held, rests):
                    components.append(Component((derived,), rules, True, stratum))
                    ways += [_merging(rule, place) for rule in rules]
            placed[name] = places[0]
        for part, way in self._parts:
            components.append(Component((part.head.predicate,), (part,), True, stratum))
            ways.append(way)
        returning = frozenset(part.head.predicate for part, _ in self._parts)
        return Draft(
            "rounds", sizes, components, [State(placed, tuple(ways))], returning=returning
        )  # fmt: skip

    def _merged(
        self, held: str, rests: tuple[RuleForm, ...]
    ) -> Iterator[tuple[str, tuple[RuleForm, ...]]]:
        """The rules by which what ranges derive is merged, and the predicates that they derive.

        Groups of several rules are first gathered as plain columns, and merged by one rule. An
        engine would merge the lattices of several rules one by one.
        """
        values = _values(rests)
        if len(rests) > 1 and values is not None:
            gathered, arity = GATHERED + held, len(rests[0].head.terms)
            told = [(name, rests[0].types[each.name]) for name, each in values[0]]
            self.columns[gathered] = (
                *self.columns[held], *(("", type_.value) for _, type_ in told)
            )  # fmt: skip
            yield gathered, tuple(
                replace(
                    rest,
                    head=replace(
                        rest.head, predicate=gathered,
                        terms=(*rest.head.terms, *(each for _, each in mine)), lattices=(),
                    ),
                )
                for rest, mine in zip(rests, values, strict=True)
            )  # fmt: skip
            merging = reading_rule(held, gathered, self.columns[gathered])
            terms = merging.head.terms
            lattices = tuple(
                (name, (term,)) for (name, _), term in zip(told, terms[arity:], strict=True)
            )
            head = replace(rests[0].head, terms=terms[:arity], lattices=lattices)
            rests = (replace(merging, number=rests[0].number, head=head),)
        yield held, rests


def _values(rests: Sequence[RuleForm]) -> list[list[tuple[str, Variable]]] | None:
    """The variable of each lattice of some heads, in their order; None where these are not alike.

    One of a number or a text has a column for its value.
    """
    found = [
        [
            (name, term)
            for name, terms in sorted(rest.head.lattices)
            for term in terms
            if isinstance(term, Variable) and name in ("min", "max") and len(terms) == 1
        ]
        for rest in rests
    ]
    told = {
        tuple((name, rest.types[each.name]) for name, each in mine)
        for rest, mine in zip(rests, found, strict=True)
    }
    whole = all(
        mine and len(mine) == len(rest.head.lattices)
        for rest, mine in zip(rests, found, strict=True)
    )
    kinds = {kind for each in told for _, kind in each}
    return found if whole and len(told) == 1 and kinds <= KINDS else None


def _merging(rule: RuleForm, place: Positions) -> Division:
    """The division of a rule that merges what ranges derive, by columns of its head."""
    return Division(frozenset(f"#{at - 1}" for at in place), (Place(place),), (), ())
