"""Rules as generated Python: nested loops over rows with the variables in locals.

The match comes first: one loop for each step of the plan, which binds columns, intersects presence
and checks the conditions placed there. Then the atoms under `not` take away the instants at which
they are blocked, and the head is computed and handed over. Where conditions may fail, a local `e`
carries (condition, reason) of the first that did, so that the match is completed and reported with
all its facts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from tidemill.datalog.evaluation.joins import Plan, Step
from tidemill.datalog.lattices import TALLIES
from tidemill.datalog.logical.expressions import Scope, source_of, truth_of, type_of
from tidemill.datalog.logical.forms import (
    AbsentForm,
    AtomForm,
    Constant,
    Expression,
    HeadForm,
    RuleForm,
    Term,
    Type,
    Variable,
    Wildcard,
    clock_time,
)
from tidemill.datalog.presence import END
from tidemill.datalog.tables import Traits

_LOOPS_MAX = 12
_LOOK_BYTES = 1 << 16
"""What may be held before it is counted."""
_LOOK_ROWS = 64
"""Of a loop in a loop, and of clocks: so many turns are made before it is asked whether to go on."""


class Writer:
    """Lines of Python at the current indentation."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self.depth = 0

    def line(self, text: str) -> None:
        """Add one line."""
        self._lines.append("  " * self.depth + text)

    @contextmanager
    def block(self, text: str) -> Iterator[None]:
        """Add a line that opens a block, and what is written inside."""
        self.line(text)
        self.depth += 1
        yield
        self.depth -= 1

    def open(self, text: str) -> None:
        """Add a line that opens a block which stays open."""
        self.line(text)
        self.depth += 1

    def count(self, source: str) -> None:
        """Add so many bytes to what is held; it is looked at now and then."""
        self.line(f"c += {source}")
        self.line(f"if c > {_LOOK_BYTES}: take(c); c = 0")

    def look(self) -> None:
        """Look now and then whether to go on."""
        self.line("k += 1")
        self.line(f"if not k & {_LOOK_ROWS - 1}: take(c); c = 0")

    def text(self) -> str:
        """Everything written."""
        return "\n".join(self._lines) + "\n"


def tuple_of(items: Sequence[str]) -> str:
    """Source of a tuple."""
    return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"


def key_of(sources: Sequence[str]) -> str:
    """Source of a key of an index: the value itself for one column, else a tuple."""
    return sources[0] if len(sources) == 1 else tuple_of(sources)


class MatchWriter:
    """Writes the loops that find the matches of a rule.

    `column_types` are the declared types of the columns of each atom, position 1 first.
    """

    def __init__(
        self,
        writer: Writer,
        form: RuleForm,
        plan: Plan,
        scope: Scope,
        column_types: Sequence[Sequence[Type]],
        frozen: bool,
    ) -> None:
        self._w = writer
        self._form = form
        self._plan = plan
        self._scope = scope
        self._column_types = column_types
        self._frozen = frozen
        self._bound: set[str] = set()
        self._fallible_before = False
        self._calls: list[tuple[int, str]] = []
        self.careful = bool(plan.fallible)

    def write(self) -> None:
        """All loops; inside the innermost, `s`, `f` hold the presence of the match and `r0…` its
        rows.
        """
        w = self._w
        w.line("s = lower; f = inf")
        if self.careful:
            w.line("e = None")
        w.open("for _ in once:")
        self._conditions(self._plan.first)
        for number, step in enumerate(self._plan.steps):
            if number and number % _LOOPS_MAX == 0:
                self._go_deeper(number)
            self._step(number, step)
        if self.careful:
            rows = tuple_of([f"r{i}" for i in range(len(self._form.atoms))])
            with w.block("if e is not None:"):
                w.line(f"fail(e[1], s, f, {rows})")
                w.line("continue")

    def _go_deeper(self, number: int) -> None:
        """Put the remaining loops into a function of their own: Python nests only twenty."""
        names = "s, f, e" if self.careful else "s, f"
        self._calls.append((self._w.depth, f"deeper{number}({names})"))
        self._w.open(f"def deeper{number}({names}):")
        self._w.line("nonlocal c, k")
        self._w.open("for _ in once:")

    def close(self) -> None:
        """Call the functions that hold inner loops; to be written after everything inside them."""
        for depth, call in reversed(self._calls):
            self._w.depth = depth
            self._w.line(call)

    def _step(self, number: int, step: Step) -> None:
        w = self._w
        atom = self._form.atoms[step.atom]
        w.line(f"s{number} = s; f{number} = f")
        if self.careful:
            w.line(f"e{number} = e")
        if atom.clock is not None:
            self._clock(number, step, atom)
        else:
            rows = self._rows(number, step)
            if number:
                w.look()
            w.open(f"for r{step.atom} in {rows}:")
            if self.careful:
                w.line(f"e = e{number}")
            self._fallible_before = self._fallible_before or any(
                probe.condition in self._plan.fallible for probe in step.probes
            )
            covered = {probe.position for probe in step.match_probes}
            self._bind(step.atom, atom, covered)
            self._intersect(number, f"r{step.atom}[0]", f"r{step.atom}[1]")
            self._recheck(step)
        self._conditions(step.conditions)

    def _rows(self, number: int, step: Step) -> str:
        """Source of the rows to look at; writes what has to be computed before."""
        if not self.careful:
            return self._lookup(
                f"q{number}", step, [source_of(p.value, self._scope) for p in step.probes]
            )
        keys: list[str] = []
        for at, probe in enumerate(step.probes):
            source = source_of(probe.value, self._scope)
            if probe.condition in self._plan.fallible:
                keys.append(f"k{number}_{at}")
            else:
                keys.append(source)
        conditional = sorted(
            (probe.condition, at)
            for at, probe in enumerate(step.probes)
            if probe.condition is not None and probe.condition in self._plan.fallible
        )
        for condition, at in conditional:
            source = source_of(step.probes[at].value, self._scope)
            with self._w.block(f"if e{number} is None:"):
                with self._w.block("try:"):
                    self._w.line(f"k{number}_{at} = {source}")
                with self._w.block("except Failed as failed:"):
                    self._w.line(f"e{number} = ({condition}, failed.reason)")
        fast = self._lookup(f"q{number}", step, keys)
        if not (self._fallible_before or conditional):
            return fast
        probes = step.match_probes
        plain = Step(step.atom, probes)
        slow = self._lookup(f"m{number}", plain, [source_of(p.value, self._scope) for p in probes])
        return f"({fast} if e{number} is None else {slow})"

    def _lookup(self, source: str, step: Step, keys: Sequence[str]) -> str:
        if step.range_column is not None:
            bucket = f"{source}.get({key_of(keys)})"
            low = self._extreme("max", step.limits.low)
            high = self._extreme("min", step.limits.high)
            return f"between({bucket}, {low}, {high})"
        if not keys:
            return source
        return f"{source}.get({key_of(keys)}, empty)"

    @staticmethod
    def _extreme(pick: str, sources: Sequence[str]) -> str:
        if not sources:
            return "None"
        return sources[0] if len(sources) == 1 else f"{pick}({', '.join(sources)})"

    def _bind(self, index: int, atom: AtomForm, covered: set[int]) -> None:
        """Bind or compare every term of the atom."""
        for position, term in enumerate(atom.terms, 1):
            if position in covered:
                continue
            kind = self._column_types[index][position - 1]
            self._term(term, f"r{index}[{4 + position}]", kind)
        for name, terms in atom.lattices:
            self._lattice(index, name, terms, covered)

    def _lattice(self, index: int, name: str, terms: Sequence[Term], covered: set[int]) -> None:
        w = self._w
        if name == "time":
            if 0 in covered:
                covered.discard(0)
                return
            w.line(f"if r{index}[4] is None: continue")
            self._term(terms[0], f"r{index}[4]", Type.INT)
        elif name == "expires":
            self._term(terms[0], f"r{index}[2]", Type.INT)
        else:
            w.line(f"x = seen(r{index}[3], {name!r})")
            w.line("if x is None: continue")
            for at, term in enumerate(terms):
                self._term(term, f"x[{at}]", Type.ANY)

    def _term(self, term: Term, source: str, kind: Type) -> None:
        if isinstance(term, Wildcard):
            return
        if isinstance(term, Constant):
            self._w.line(f"if {source} != {self._scope.constant(term.value)}: continue")
            return
        name = self._scope.name_of(term.name)
        floating = self._scope.types.get(term.name) is Type.FLOAT and kind is not Type.FLOAT
        if floating:
            source = f"widen({source})"
        if term.name in self._bound:
            self._w.line(f"if {source} != {name}: continue")
        else:
            self._w.line(f"{name} = {source}")
            self._bound.add(term.name)

    def _intersect(self, number: int, start: str, end: str) -> None:
        w = self._w
        w.line(f"s = {start}")
        if number:
            w.line(f"if s < s{number}: s = s{number}")
        w.line(f"f = {end}")
        if number:
            w.line(f"if f > f{number}: f = f{number}")
            w.line("if s >= f: continue")

    def _recheck(self, step: Step) -> None:
        """Conditions that the index decided, where the index was not used because of an earlier
        failure.
        """
        if not (self.careful and self._fallible_before):
            return
        for probe in step.probes:
            if probe.condition is not None and probe.condition not in self._plan.fallible:
                source = truth_of(self._form.conditions[probe.condition], self._scope)
                self._w.line(
                    f"if e is not None and e[0] > {probe.condition} and not {source}: continue"
                )

    def _conditions(self, conditions: Sequence[int]) -> None:
        w = self._w
        for index in conditions:
            source = truth_of(self._form.conditions[index], self._scope)
            if index in self._plan.fallible:
                with w.block("if e is None:"):
                    with w.block("try:"):
                        w.line(f"if not {source}: continue")
                    with w.block("except Failed as failed:"):
                        w.line(f"e = ({index}, failed.reason)")
                self._fallible_before = True
            elif self._fallible_before:
                w.line(f"if (e is None or e[0] > {index}) and not {source}: continue")
            else:
                w.line(f"if not {source}: continue")

    def _clock(self, number: int, step: Step, atom: AtomForm) -> None:
        assert atom.clock is not None
        w = self._w
        offset, period = (source_of(argument, self._scope) for argument in atom.clock)
        if step.atom in self._plan.valid_clocks:
            w.line(f"o{number} = {offset}; p{number} = {period}")
        else:
            rows = [f"r{i}" for i, other in enumerate(self._form.atoms) if not other.is_clock]
            with w.block("try:"):
                w.line(f"o{number}, p{number} = usable_clock({offset}, {period})")
            with w.block("except Failed as failed:"):
                w.line(f"fail_clock(failed.reason, s, f, {tuple_of(rows)})")
                w.line("continue")
        w.open(f"for t{number} in {self._ticks(number, step, clock_time(atom))}:")
        w.look()
        if self.careful:
            w.line(f"e = e{number}")
        w.line(f"r{step.atom} = (t{number}, inf, inf, None, t{number}, o{number}, p{number})")
        for name, terms in atom.lattices:
            self._lattice(step.atom, name, terms, set())
        start = "beginning" if self._frozen else f"(t{number} if t{number} > lower else lower)"
        self._intersect(number, start, "inf")

    def _ticks(self, number: int, step: Step, time: Constant | Variable | None) -> str:
        clock = f"o{number}, p{number}"
        if isinstance(time, Constant) or (isinstance(time, Variable) and time.name in self._bound):
            return f"tick_at({clock}, {source_of(time, self._scope)}, upper)"
        low = self._extreme("max", step.limits.low)
        ends = ["upper - 1", "f - 1"]
        high = f"min({', '.join([*ends, *step.limits.high])})"
        fast = f"ticks({clock}, {low}, {high})"
        if not self._fallible_before:
            return fast
        return f"({fast} if e is None else ticks({clock}, None, min(upper - 1, f - 1)))"


class DerivationWriter:
    """Writes what follows a match: the atoms under `not`, and the head.

    `traits` says of each atom what its rows carry; what no row carries is not looked at.
    """

    def __init__(
        self,
        writer: Writer,
        form: RuleForm,
        scope: Scope,
        traits: Sequence[Traits],
        head_types: Sequence[Type],
        lattice_types: Mapping[str, Sequence[Type]],
    ) -> None:
        self._w = writer
        self._form = form
        self._scope = scope
        self._traits = traits
        self.head_types = head_types
        self._lattice_types = lattice_types

    def absences(self, give_up: str = "continue") -> None:
        """Narrow `pieces` by every atom under `not`; leave with `give_up` where nothing remains."""
        w = self._w
        w.line("pieces = ((s, f),)")
        for number, absent in enumerate(self._form.absent):
            source = self._cover(number, absent)
            if absent.is_clock or any(map(self._scope.fallible, absent.expressions())):
                with w.block("try:"):
                    w.line(f"cover = {source}")
                with w.block("except Failed as failed:"):
                    w.line(f"for s, f in pieces: fail(failed.reason, s, f, {self.rows()})")
                    w.line(give_up)
            else:
                w.line(f"cover = {source}")
            with w.block("if cover:"):
                w.line("pieces = cut(pieces, cover)")
                w.line(f"if not pieces: {give_up}")

    def _cover(self, number: int, absent: AbsentForm) -> str:
        """Source of the instants at which the atom is present for the values bound."""
        if absent.by_columns:
            return f"n{number}.get({self.wanted(absent)})"
        return f"n{number}({self.wanted(absent)})"

    def wanted(self, absent: AbsentForm) -> str:
        """Source of what an atom under `not` asks for: a key of an index, or a value for each term."""
        if absent.by_columns:
            return key_of([source_of(value, self._scope) for _, value in absent.columns()])
        return tuple_of(
            [
                "any_value" if isinstance(term, Wildcard) else source_of(term, self._scope)
                for term in absent.every_term()
            ]
        )

    def rows(self) -> str:
        """Source of the tuple of matched rows."""
        return tuple_of([f"r{i}" for i in range(len(self._form.atoms))])

    def identity(self) -> str:
        """Source of the identity of a solution: the rule, its facts, the parafacts it matched."""
        atoms = self._form.atoms
        keys = tuple_of([f"r{i}[4:]" for i in range(len(atoms))])
        matched = [
            self._scope.name_of(term.name)
            for atom in atoms
            for name, terms in atom.lattices
            if name != "time"
            for term in terms
            if isinstance(term, Variable)
        ]
        return f"(number, {keys}, {tuple_of(matched)})"

    def head_fallible(self) -> bool:
        """Whether computing the head may fail."""
        head = self._form.head
        if any(self._scope.fallible(expression) for expression in head_expressions(head)):
            return True
        return any(
            not self._surely_instant(expression) for expression in (*head.time, *head.expires)
        )

    def head(self) -> None:
        """Compute `a` (arguments), `t` (time), `x` (expiry), `p` (passed parafacts), `v`
        (aggregated).
        """
        head = self._form.head
        arguments = [
            self._argument(expression, kind)
            for expression, kind in zip(head.terms, self.head_types, strict=True)
        ]
        self._w.line(f"a = {tuple_of(arguments)}")
        self._time(head)
        self._expiry(head)
        self._passed(head)
        if head.aggregates:
            values = [self._injected(name, terms) for name, terms in head.lattices]
            self._w.line(f"v = {tuple_of(values)}")

    def _argument(self, expression: Expression, kind: Type) -> str:
        source = source_of(expression, self._scope)
        if kind is Type.FLOAT and type_of(expression, self._scope.types) is not Type.FLOAT:
            return f"widen({source})"
        return source

    def _injected(self, name: str, terms: Sequence[Expression]) -> str:
        kinds = self._lattice_types.get(name, (Type.ANY,) * len(terms))
        if name in TALLIES:
            # What is added up is not rounded on the way.
            source = source_of(terms[0], self._scope)
            known = type_of(terms[0], self._scope.types)
            floating = name == "sum" and kinds[0] is Type.FLOAT and known is not Type.FLOAT
            return f"among_floats({source})" if floating else source
        sources = [self._argument(term, kind) for term, kind in zip(terms, kinds, strict=True)]
        self._scope.constants[f"inject_{name}"] = self._scope.lattices[name].inject
        return f"inject_{name}({', '.join(sources)})"

    def _instant(self, expression: Expression, check: str) -> str:
        source = source_of(expression, self._scope)
        return source if self._surely_instant(expression) else f"{check}({source})"

    def _surely_instant(self, expression: Expression) -> bool:
        """Whether the value is a whole number, neither null nor infinite."""
        known = self._scope.bounds_of(expression)
        whole = type_of(expression, self._scope.types) is Type.INT
        return whole and known is not None and not known.nullable and known.high < END

    def _time(self, head: HeadForm) -> None:
        w = self._w
        if head.time:
            sources = [self._instant(expression, "instant") for expression in head.time]
            w.line(f"t = {sources[0] if len(sources) == 1 else 'max(' + ', '.join(sources) + ')'}")
            return
        passing = [
            i
            for i, atom in enumerate(self._form.atoms)
            if "time" not in atom.suppressed and self._traits[i].timed
        ]
        if "time" in head.suppressed or not passing:
            w.line("t = None")
            return
        w.line(f"t = r{passing[0]}[4]")
        certain = not self._traits[passing[0]].timeless
        for i in passing[1:]:
            mine = f"r{i}[4]"
            if certain and not self._traits[i].timeless:
                w.line(f"if {mine} > t: t = {mine}")
            elif certain:
                w.line(f"if {mine} is not None and {mine} > t: t = {mine}")
            else:
                w.line(f"if t is None or ({mine} is not None and {mine} > t): t = {mine}")
                certain = not self._traits[i].timeless

    def _expiry(self, head: HeadForm) -> None:
        w = self._w
        if head.expires:
            sources = [self._instant(expression, "expiry") for expression in head.expires]
            w.line(f"x = {sources[0] if len(sources) == 1 else 'min(' + ', '.join(sources) + ')'}")
            return
        passing = [
            i
            for i, atom in enumerate(self._form.atoms)
            if "expires" not in atom.suppressed and self._traits[i].expiring
        ]
        if "expires" in head.suppressed or not passing:
            w.line("x = inf")
            return
        w.line(f"x = r{passing[0]}[2]")
        for i in passing[1:]:
            w.line(f"if r{i}[2] < x: x = r{i}[2]")

    def _passed(self, head: HeadForm) -> None:
        w = self._w
        dropped = set(head.suppressed) | {name for name, _ in head.lattices}
        sources = []
        for i, atom in enumerate(self._form.atoms):
            if self._traits[i].decorated:
                names = (dropped | atom.suppressed) - {"time", "expires"}
                sources.append(self._without(f"r{i}[3]", names))
        if not sources:
            w.line("p = None")
            return
        w.line(f"p = {sources[0]}")
        for source in sources[1:]:
            w.line(f"p = merge(p, {source})")

    def _without(self, source: str, names: set[str]) -> str:
        if not names:
            return source
        return f"without({source}, {self._scope.constant(frozenset(names), 'names')})"


def head_expressions(head: HeadForm) -> list[Expression]:
    """Every expression of a head."""
    return [
        *head.terms,
        *head.time,
        *head.expires,
        *(term for _, terms in head.lattices for term in terms),
    ]


__all__ = ["DerivationWriter", "Mapping", "MatchWriter", "Writer", "head_expressions", "tuple_of"]
