"""The meaning of a program, instant by instant, straight from language.md, without any cleverness.

At every instant the rules are applied to the facts present, again and again, until nothing changes.
A match is found by trying every combination of facts. Solutions that outlive their facts are
remembered from one instant to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, TypeAlias

from tidemill.datalog import ast, values
from tidemill.datalog.checked import CheckedProgram, ResolvedAtom, ResolvedRule
from tidemill.datalog.presence import Presence
from tidemill.datalog.records import Record, format_record
from tidemill.datalog.values import Failed
from tidemill.testkit.twins.expressions import value_of
from tidemill.testkit.twins.lattice_values import (
    given_value,
    inject,
    merge_alternative,
    merge_into,
    merged,
    observe,
)

INF = float("inf")
Key: TypeAlias = "tuple[Any, ...]"  # (predicate, arguments, time)
Carried: TypeAlias = "tuple[Any, Mapping[str, Any]]"  # expires, inner lattice values
Facts: TypeAlias = "dict[Key, Carried]"
Bound: TypeAlias = "dict[str, Any]"

ROUNDS_MAX = 500


class Unsettled(Exception):
    """A recursion has no end, or one after more than `ROUNDS_MAX` rounds."""


@dataclass(slots=True)
class Memory:
    """The memory that one instant leaves to the next."""

    established: dict[Any, Any] = field(default_factory=dict)
    lingering: dict[Any, set[Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class At:
    """The answer at one instant: texts of records by predicate, texts of errors."""

    records: Mapping[str, frozenset[str]]
    errors: frozenset[str]


def answers(
    checked: CheckedProgram, inputs: Mapping[str, Sequence[Presence]], lower: int, upper: int
) -> list[At]:
    """The answer at each instant lower - 1, lower, …, upper - 1; nothing may begin before `lower`.

    The first one stands for all instants before `lower`. Cost: exponential in the size of a rule.
    Raises: Unsettled.
    """
    memory = Memory()
    found = []
    for at in range(lower - 1, upper):
        instant = _Instant(checked, inputs, at, upper, memory)
        found.append(instant.answer())
        memory = instant.memory
    return found


def tick_answers(
    checked: CheckedProgram,
    inputs: Sequence[Mapping[str, Sequence[Record]]],
    instants: Sequence[int],
) -> list[At]:
    """The answer of each tick of a program with `@next`, given the input records of each tick."""
    given = dict(zip(instants, inputs, strict=True))
    return [found for _, found in ticks_on_change(checked, given.__getitem__, instants, 0)]


def ticks_on_change(
    checked: CheckedProgram,
    given: Callable[[int], Mapping[str, Sequence[Record]]],
    instants: Sequence[int],
    upper: int,
) -> list[tuple[int, At]]:
    """Ticks at `instants`, and below `upper` one after each tick that hands on something else."""
    carried: list[tuple[Key, Carried]] = []
    found: list[tuple[int, At]] = []
    memory, waiting = Memory(), sorted(instants)
    while waiting:
        at = waiting.pop(0)
        presences = {name: list(map(Presence, records)) for name, records in given(at).items()}
        instant = _Instant(checked, presences, at, at + 1, memory)
        for key, fact in carried:
            if fact[0] > at:
                merge_alternative(instant.facts, key, fact)
        said, before = instant.answer(), _as_one(carried, at)
        carried = instant.carried()
        found.append((at, At(said.records, frozenset(instant.errors))))
        memory = instant.memory
        if _as_one(carried, at) != before and at + 1 < upper and at + 1 not in waiting[:1]:
            waiting.insert(0, at + 1)
    return found


def _as_one(
    carried: Sequence[tuple[Key, Carried]], at: int
) -> dict[Key, tuple[Any, frozenset[str]]]:
    """Carried facts that live after an instant: the greatest expiry, and all other values."""
    found: dict[Key, tuple[Any, frozenset[str]]] = {}
    for key, (expires, inner) in carried:
        if expires > at:
            known, others = found.get(key, (expires, frozenset()))
            found[key] = max(known, expires), others | {repr(inner)}
    return found


class _Instant:
    def __init__(
        self,
        checked: CheckedProgram,
        inputs: Mapping[str, Sequence[Presence]],
        at: int,
        upper: int,
        before: Memory,
    ) -> None:
        self.checked = checked
        self.at = at
        self.upper = upper
        self.before = before
        self.memory = Memory()
        self.errors: set[str] = set()
        self.facts: Facts = {}
        for name, presences in inputs.items():
            for presence in presences if name in checked.columns else ():
                if presence.start <= at < presence.end:
                    self._give(name, presence.record)

    def _give(self, name: str, record: Record) -> None:
        arguments = self._typed(name, record.arguments)
        inner = {
            lattice: given_value(lattice, seen if isinstance(seen, tuple) else (seen,), record)
            for lattice, seen in record.parafacts
        }
        expires = INF if record.expires is None else record.expires
        merge_alternative(self.facts, (name, arguments, record.time), (expires, inner))

    def _typed(self, name: str, arguments: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(
            values.widen(value) if kind == "float" else value
            for value, (_, kind) in zip(arguments, self.checked.columns[name], strict=True)
        )

    def answer(self) -> At:
        for component in self.checked.components:
            self._fix(component)
        records: dict[str, set[str]] = {name: set() for name in self.checked.derived}
        for (name, arguments, time), (expires, inner) in self.facts.items():
            seen = tuple((lattice, observe(lattice, value)) for lattice, value in inner.items())
            end = None if expires == INF else expires
            records.setdefault(name, set()).add(
                format_record(Record(name, arguments, time, end, seen))
            )
        return At(
            {name: frozenset(texts) for name, texts in records.items()}, frozenset(self.errors)
        )

    def carried(self) -> list[tuple[Key, Carried]]:
        """Facts that rules with `@next` carry on, by derivation, and errors; after `answer`."""
        found: list[tuple[Key, Carried]] = []
        for rule in self.checked.rules:
            if isinstance(rule.temporal, ast.NextTick):
                found += self._derivations(rule)
        return found

    def _fix(self, component: Sequence[str]) -> None:
        """Apply the rules of a component to its last answer until the answer stays the same."""
        rules = [r for r in self.checked.rules if r.deductive and r.predicate in component]
        # Rules that read nothing of the component would say the same again.
        again = any(atom.predicate in component for rule in rules for atom in rule.atoms)
        given, errors = dict(self.facts), set(self.errors)
        for _ in range(ROUNDS_MAX):
            last, self.errors, found = self.facts, set(errors), dict(given)
            for rule in rules:
                for key, carried in self._derivations(rule):
                    merge_alternative(found, key, carried)
            self.facts = found
            if last == found or not again:
                return
        raise Unsettled

    def _derivations(self, rule: ResolvedRule) -> Iterator[tuple[Key, Carried]]:
        """The present derivations of a rule, one for each solution or for each group."""
        solutions = list(self._living(rule))
        if not rule.aggregates:
            for arguments, time, expires, inner, _, _ in solutions:
                yield (rule.predicate, arguments, time), (expires, inner)
            return
        groups: dict[Any, list[Any]] = {}
        for solution in solutions:
            head_time = solution[1] if rule.mentions("time") else None
            groups.setdefault((solution[0], head_time), []).append(solution)
        for (arguments, _), members in groups.items():
            yield from self._group(rule, arguments, members)

    def _group(
        self, rule: ResolvedRule, arguments: tuple[Any, ...], members: list[Any]
    ) -> Iterator[tuple[Key, Carried]]:
        times = [member[1] for member in members if member[1] is not None]
        time = max(times) if times else None
        expires = min(member[2] for member in members)
        inner: dict[str, Any] = {}
        for _, _, _, passed, written, identity in members:
            for lattice, value in passed.items():
                merge_into(inner, lattice, value)
            for position, (lattice, terms) in enumerate(written):
                merge_into(
                    inner, lattice, inject(lattice, terms, (rule.number, identity, position))
                )
        try:
            for lattice, value in inner.items():
                observe(lattice, value)
        except Failed as failed:
            self.errors.add(f"{failed.reason}: {_text((rule.predicate, arguments, time))}")
            return
        yield (rule.predicate, arguments, time), (expires, inner)

    # Solutions: (arguments, time, expires, passed, written lattices, identity).

    def _living(self, rule: ResolvedRule) -> Iterator[Any]:
        """The solutions of a rule that live at this instant."""
        own_expiry = rule.mentions("expires") or "expires" in rule.suppressed
        if not (own_expiry and rule.deductive):
            for identity, arguments, time, expires, versions, written in self._holding(rule):
                if not (rule.mentions("time") and time > self.at):
                    yield arguments, time, expires, merged(versions), written, identity
            return
        kept = {
            identity: (solution, dict.fromkeys(versions))
            for identity, (solution, versions) in self.before.established.items()
            if identity[0] == rule.number and solution[2] > self.at
        }
        for identity, arguments, time, expires, versions, written in self._holding(rule):
            if (rule.mentions("time") and time > self.at) or expires <= self.at:
                continue
            _, known = kept.setdefault(identity, ((arguments, time, expires, written), {}))
            known.update(dict.fromkeys(_frozen(version) for version in versions))
        for identity in [i for i in self.memory.established if i[0] == rule.number]:
            del self.memory.established[identity]
        self.memory.established.update(kept)
        for identity, ((arguments, time, expires, written), versions) in kept.items():
            passed = merged([dict(version) for version in versions])
            yield arguments, time, expires, passed, written, identity

    def _holding(self, rule: ResolvedRule) -> Iterator[Any]:
        """The solutions whose body holds now, or still lingers: with every version of passed
        lattices.
        """
        leaving = [i for i, atom in enumerate(rule.positive) if "expires" in atom.suppressed]
        now: dict[Any, set[Any]] = {}
        for keys, bound, errors in self._matches(rule):
            if errors is not None:
                self.errors.add(errors)
                continue
            identity = (rule.number, keys, _frozen(_matched(rule, bound)))
            version = tuple(_frozen(self.facts_of(rule, keys)[i][1]) for i in leaving)
            now.setdefault(identity, set()).add(version)
        if leaving:
            for identity, versions in self.before.lingering.items():
                if identity[0] == rule.number and self._lingers(rule, identity, leaving):
                    now.setdefault(identity, set()).update(versions)
            for identity in [i for i in self.memory.lingering if i[0] == rule.number]:
                del self.memory.lingering[identity]
            self.memory.lingering.update(now)
        for identity, versions in now.items():
            yield from self._derive(rule, identity, versions, leaving)

    def facts_of(self, rule: ResolvedRule, keys: Sequence[Key]) -> list[Carried]:
        return [
            (INF, {}) if atom.clock else self.facts.get(key, (INF, {}))
            for atom, key in zip(rule.positive, keys, strict=True)
        ]

    def _lingers(self, rule: ResolvedRule, identity: Any, leaving: Sequence[int]) -> bool:
        bound: Bound = {}
        for i, (atom, key) in enumerate(zip(rule.positive, identity[1], strict=True)):
            carried = (INF, {}) if atom.clock else self.facts.get(key)
            if i in leaving:
                self._bind(rule, atom, key, (INF, {}), bound, skip_lattices=True)
            elif carried is None or not self._bind(rule, atom, key, carried, bound):
                return False
        known = dict(identity[2])
        if any(name in bound and bound[name] != value for name, value in known.items()):
            return False
        bound.update(known)
        try:
            return self._absent(rule, bound)
        except Failed:
            return False

    def _derive(
        self, rule: ResolvedRule, identity: Any, versions: set[Any], leaving: Sequence[int]
    ) -> Iterator[Any]:
        keys = identity[1]
        bound: Bound = {}
        for atom, key in zip(rule.positive, keys, strict=True):
            self._bind(rule, atom, key, (INF, {}), bound, skip_lattices=True)
        bound.update(dict(identity[2]))
        facts = self.facts_of(rule, keys)
        try:
            arguments = self._typed(rule.predicate, [value_of(rule, t, bound) for t in rule.terms])
            time, expires = self._time(rule, keys, bound), self._expiry(rule, facts, bound)
            written = [
                (p.lattice, tuple(self._lattice_values(rule, p, bound)))
                for p in rule.parafacts
                if p.lattice not in ("time", "expires")
            ]
        except Failed as failed:
            if not leaving or self._holds_now(rule, identity):
                self.errors.add(_error(failed.reason, keys))
            return
        passed = []
        for version in versions:
            inner: dict[str, Any] = {}
            said = dict(zip(leaving, version, strict=True))
            for i, atom in enumerate(rule.positive):
                mine = dict(said[i]) if i in said else facts[i][1]
                for lattice, value in mine.items():
                    hidden = lattice in atom.suppressed or lattice in rule.suppressed
                    if not hidden and lattice not in rule.aggregates:
                        merge_into(inner, lattice, value)
            passed.append(inner)
        yield identity, arguments, time, expires, passed, written

    def _holds_now(self, rule: ResolvedRule, identity: Any) -> bool:
        return all(
            atom.clock or key in self.facts
            for atom, key in zip(rule.positive, identity[1], strict=True)
        )

    def _lattice_values(self, rule: ResolvedRule, parafact: Any, bound: Bound) -> Iterator[Any]:
        kinds = self.checked.lattice_types.get((rule.predicate, parafact.lattice), ())
        for position, term in enumerate(parafact.terms):
            value = value_of(rule, term, bound)
            if kinds[position : position + 1] != ("float",):
                yield value
            elif parafact.lattice in ("sum", "average"):
                yield Fraction(value) if type(value) is int else value  # never rounded on the way
            else:
                yield values.widen(value)

    def _time(self, rule: ResolvedRule, keys: Sequence[Key], bound: Bound) -> int | None:
        written = [p.terms[0] for p in rule.parafacts if p.lattice == "time"]
        if written:
            times = [value_of(rule, term, bound) for term in written]
            for time in times:
                if type(time) is not int:
                    raise Failed(values.OVERFLOW if time == INF else values.WRONG_TYPE)
            latest: int = max(times)
            return latest
        if "time" in rule.suppressed:
            return None
        passed = [
            key[2]
            for atom, key in zip(rule.positive, keys, strict=True)
            if "time" not in atom.suppressed and key[2] is not None
        ]
        return max(passed, default=None)

    def _expiry(self, rule: ResolvedRule, facts: Sequence[Carried], bound: Bound) -> Any:
        written = [p.terms[0] for p in rule.parafacts if p.lattice == "expires"]
        if written:
            ends = [value_of(rule, term, bound) for term in written]
            if any(type(end) is not int and end != INF for end in ends):
                raise Failed(values.WRONG_TYPE)
            return min(ends)
        if "expires" in rule.suppressed:
            return INF
        return min(
            (
                fact[0]
                for atom, fact in zip(rule.positive, facts, strict=True)
                if "expires" not in atom.suppressed
            ),
            default=INF,
        )

    # Matches: the facts chosen, what they bind, and the text of the error if there is one.

    def _matches(self, rule: ResolvedRule) -> Iterator[tuple[tuple[Key, ...], Bound, str | None]]:
        found: list[tuple[dict[int, Key], Bound]] = [({}, {})]
        for i, atom in enumerate(rule.positive):
            if atom.clock:
                continue
            alike = [key for key in self.facts if key[0] == atom.predicate]
            longer = [({**keys, i: key}, dict(bound)) for keys, bound in found for key in alike]
            found = [(k, b) for k, b in longer if self._bind(rule, atom, k[i], self.facts[k[i]], b)]
        for keys, bound in found:
            yield from self._with_clocks(rule, keys, bound)

    def _with_clocks(
        self, rule: ResolvedRule, keys: dict[int, Key], bound: Bound
    ) -> Iterator[tuple[tuple[Key, ...], Bound, str | None]]:
        atoms = rule.positive
        clocks = [i for i, atom in enumerate(atoms) if atom.clock and i not in keys]
        if not clocks:
            ordered = tuple(keys[i] for i in range(len(atoms)))
            yield from self._decide(rule, ordered, bound)
            return
        ready = [i for i in clocks if self._clock_bound(rule, atoms[i], bound)]
        i = ready[0]
        try:
            offset, period = (value_of(rule, term, bound) for term in atoms[i].terms)
            _usable(offset, period)
        except Failed as failed:
            facts = [keys[j] for j in sorted(keys) if not atoms[j].clock]
            yield (), {}, _error(failed.reason, facts)
            return
        for tick in range(offset, min(self.at, self.upper - 1) + 1, period):
            further = dict(bound)
            key = ("clock", (offset, period), tick)
            if self._bind(rule, atoms[i], key, (INF, {}), further):
                yield from self._with_clocks(rule, {**keys, i: key}, further)

    def _clock_bound(self, rule: ResolvedRule, atom: ResolvedAtom, bound: Bound) -> bool:
        def known(term: ast.Expression) -> bool:
            return all(
                variable.name in bound
                or (variable.name in rule.definitions and known(rule.definitions[variable.name]))
                for variable in ast.variables_in(term)
            )

        return all(known(term) for term in atom.terms)

    def _bind(
        self,
        rule: ResolvedRule,
        atom: ResolvedAtom,
        key: Key,
        carried: Carried,
        bound: Bound,
        skip_lattices: bool = False,
    ) -> bool:
        """Whether literals, lone variables and parafact terms of those forms agree."""
        pairs: list[tuple[ast.Expression, Any]] = []
        if not atom.clock:
            pairs += zip(atom.terms, key[1], strict=True)
        for parafact in atom.parafacts:
            if parafact.lattice == "time":
                if key[2] is None:
                    return False
                pairs.append((parafact.terms[0], key[2]))
            elif skip_lattices:
                continue
            elif parafact.lattice == "expires":
                pairs.append((parafact.terms[0], carried[0]))
            elif parafact.lattice not in carried[1]:
                return False
            else:
                seen = observe(parafact.lattice, carried[1][parafact.lattice])
                parts = seen if isinstance(seen, tuple) else (seen,)
                pairs += zip(parafact.terms, parts, strict=True)
        kinds = self.checked.variable_types[rule.number]
        for term, value in pairs:
            if isinstance(term, ast.Literal) and not values.equal(term.value, value):
                return False
            if isinstance(term, ast.Variable) and term.name not in rule.definitions:
                typed = values.widen(value) if kinds.get(term.name) == "float" else value
                if term.name in bound and not values.equal(bound[term.name], typed):
                    return False
                bound[term.name] = typed
        return True

    def _decide(
        self, rule: ResolvedRule, keys: tuple[Key, ...], bound: Bound
    ) -> Iterator[tuple[tuple[Key, ...], Bound, str | None]]:
        """Conditions in the order of language.md 9.1: terms, guards, `not`."""
        try:
            for atom, key in zip(rule.positive, keys, strict=True):
                if not self._terms_hold(rule, atom, key, bound):
                    return
            if all(value_of(rule, guard, bound) is True for guard in rule.guards) and (
                self._absent(rule, bound)
            ):
                yield keys, bound, None
        except Failed as failed:
            yield keys, bound, _error(failed.reason, keys)

    def _terms_hold(self, rule: ResolvedRule, atom: ResolvedAtom, key: Key, bound: Bound) -> bool:
        pairs: list[tuple[ast.Expression, Any]] = []
        if not atom.clock:
            pairs += zip(atom.terms, key[1], strict=True)
        carried = (INF, {}) if atom.clock else self.facts[key]
        for parafact in atom.parafacts:
            if parafact.lattice == "time":
                pairs.append((parafact.terms[0], key[2]))
            elif parafact.lattice == "expires":
                pairs.append((parafact.terms[0], carried[0]))
            else:
                seen = observe(parafact.lattice, carried[1][parafact.lattice])
                parts = seen if isinstance(seen, tuple) else (seen,)
                pairs += zip(parafact.terms, parts, strict=True)
        for term, value in pairs:
            lone = isinstance(term, ast.Variable) and term.name not in rule.definitions
            if lone or isinstance(term, ast.Literal | ast.Wildcard):
                continue
            if not values.equal(value_of(rule, term, bound), value):
                return False
        return True

    def _absent(self, rule: ResolvedRule, bound: Bound) -> bool:
        """Whether no fact matches an atom under `not`."""
        for atom in rule.atoms:
            if not atom.negated:
                continue
            wanted = [self._wanted(rule, term, bound) for term in atom.terms]
            lattices = [
                (p.lattice, [self._wanted(rule, term, bound) for term in p.terms])
                for p in atom.parafacts
            ]
            facts: Iterable[Key] = list(self.facts)
            if atom.clock:
                _usable(*wanted)
                last = min(self.at, self.upper - 1)
                facts = [
                    (atom.predicate, tuple(wanted), tick)
                    for tick in range(wanted[0], last + 1, wanted[1])
                ]
            if any(self._blocks(atom, wanted, lattices, key) for key in facts):
                return False
        return True

    def _wanted(self, rule: ResolvedRule, term: ast.Expression, bound: Bound) -> Any:
        return _ANY if isinstance(term, ast.Wildcard) else value_of(rule, term, bound)

    def _blocks(self, atom: ResolvedAtom, wanted: list[Any], lattices: list[Any], key: Key) -> bool:
        if key[0] != atom.predicate or not _agree(wanted, key[1]):
            return False
        expires, inner = self.facts.get(key, (INF, {}))
        for lattice, terms in lattices:
            if lattice == "time":
                seen: Any = key[2]
                if seen is None:
                    return False
            elif lattice == "expires":
                seen = expires
            elif lattice not in inner:
                return False
            else:
                seen = observe(lattice, inner[lattice])
            if not _agree(terms, seen if isinstance(seen, tuple) else (seen,)):
                return False
        return True


_ANY = object()


def _agree(wanted: Iterable[Any], seen: Iterable[Any]) -> bool:
    return all(
        each is _ANY or values.equal(each, value) for each, value in zip(wanted, seen, strict=True)
    )


def _usable(offset: Any, period: Any) -> None:
    if type(offset) is not int or type(period) not in (int, type(None)):
        raise Failed(values.WRONG_TYPE)
    if period is None or period <= 0:
        raise Failed(values.PERIOD_NOT_POSITIVE)


def _matched(rule: ResolvedRule, bound: Bound) -> dict[str, Any]:
    """The values of parafacts other than the time that the match bound."""
    names = [
        term.name
        for atom in rule.positive
        for p in atom.parafacts
        if p.lattice != "time"
        for term in p.terms
        if isinstance(term, ast.Variable) and term.name not in rule.definitions
    ]
    return {name: bound[name] for name in names}


def _text(key: Key) -> str:
    return format_record(Record(key[0], key[1], key[2]))


def _error(reason: str, keys: Iterable[Key]) -> str:
    return f"{reason}: {' ^ '.join(map(_text, keys))}"


def _frozen(mapping: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(sorted(mapping.items(), key=lambda item: item[0]))
