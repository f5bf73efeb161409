"""Names, columns and arities: from rules as written to rules with one term for each column."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches

from tidemill.datalog.ast import Application, Argument, Atom, Expression, Program, Rule, Wildcard
from tidemill.datalog.checked import CLOCK, ResolvedAtom, ResolvedParafact, ResolvedRule
from tidemill.datalog.diagnostics import Diagnostic
from tidemill.datalog.inputs import InputSchema, InputSchemas

_NAMES_SHOWN = 12


class Resolution:
    """Resolves the rules of one program against its inputs and collects what does not fit."""

    def __init__(self, program: Program, inputs: InputSchemas) -> None:
        self._program = program
        self._readable = inputs
        self.mistakes: list[Diagnostic] = []
        self.inputs: dict[str, InputSchema] = {}
        self.column_names: dict[str, tuple[str, ...]] = {}
        self._derived = dict.fromkeys(rule.head.application.name for rule in program.rules)
        self.rules: tuple[ResolvedRule, ...] = ()

    def resolve(self) -> None:
        """Fill `rules`, `inputs` and `column_names`, or `mistakes`."""
        for rule in self._program.rules:
            self._declare_head(rule)
        self.rules = tuple(self._rule(rule) for rule in self._program.rules)
        if len({s.timeline for name, s in self.inputs.items() if self._knows(name)}) > 1:
            self._report_timelines()

    def _report_timelines(self) -> None:
        """The first place at which a second timeline is read."""
        timelines: dict[str, str] = {}
        for rule in self._program.rules:
            for application in (rule.head.application, *(atom.application for atom in rule.atoms)):
                schema = self.inputs.get(application.name)
                if schema is not None and self._knows(application.name):
                    timelines.setdefault(schema.timeline, schema.name)
                    if len(timelines) == 2:
                        self._report_two(timelines, application)
                        return

    def _knows(self, name: str) -> bool:
        """Whether the timeline of an input is one that somebody stated."""
        return not self._readable.closed or name in self._readable.schemas

    def _report_two(self, timelines: Mapping[str, str], place: Application) -> None:
        (one, first), (other, second) = timelines.items()
        self._report(
            "S125",
            f"`{first}` is on the timeline {one}, `{second}` on {other}",
            place,
            "give both the same timeline where they are declared, or read them in views of their own",
        )

    def _report(
        self, code: str, message: str, place: Application | Argument, hint: str = ""
    ) -> None:
        span = place.name_span if isinstance(place, Application) else place.span
        self.mistakes.append(Diagnostic(code, message, span, self._program.file, hint))

    def _declare_head(self, rule: Rule) -> None:
        """The first rule of a predicate gives the number of columns, the first named one names."""
        head = rule.head.application
        known = self._readable.schemas.get(head.name)
        if head.name == CLOCK:
            self._report(
                "S110",
                "`clock` is the predicate of clock events",
                head,
                "clocks tick by themselves: read one with clock(0, 100) @time(t), or take another name",
            )
        elif known is not None:
            self.column_names.setdefault(head.name, _input_names(known))
            self.inputs.setdefault(head.name, known)
        elif head.named and all(argument.name for argument in head.arguments):
            names = tuple(argument.name or "" for argument in head.arguments)
            current = self.column_names.get(head.name)
            if current is None or (len(current) == len(names) and current == _plain(len(names))):
                self.column_names[head.name] = names
        else:
            self.column_names.setdefault(head.name, _plain(len(head.arguments)))

    def _rule(self, rule: Rule) -> ResolvedRule:
        head = rule.head.application
        terms: tuple[Expression, ...] = ()
        if head.name != CLOCK:  # which is refused by its name
            terms = self._terms(head, complete=True)
        atoms = tuple(self._atom(atom) for atom in rule.atoms)
        return ResolvedRule(
            number=rule.number,
            predicate=head.name,
            terms=terms,
            parafacts=tuple(map(self._parafact, rule.head.parafacts)),
            suppressed=frozenset(mark.lattice for mark in rule.head.suppressed),
            temporal=rule.head.temporal,
            atoms=atoms,
            guards=rule.guards,
            definitions={each.name: each.value for each in rule.definitions},
            source=rule,
        )

    def _atom(self, atom: Atom) -> ResolvedAtom:
        application = atom.application
        if application.name == CLOCK:
            terms = self._clock_terms(application)
        else:
            self._know(application)
            terms = self._terms(application, complete=False)
        return ResolvedAtom(
            predicate=application.name,
            terms=terms,
            parafacts=tuple(map(self._parafact, atom.parafacts)),
            suppressed=frozenset(mark.lattice for mark in atom.suppressed),
            negated=atom.negated,
            span=atom.span,
            name_span=application.name_span,
        )

    def _parafact(self, application: Application) -> ResolvedParafact:
        for argument in application.arguments:
            if argument.name is not None:
                self._report(
                    "S121", f"a lattice has no column `{argument.name}`", argument,
                    "give its values by position",
                )  # fmt: skip
        return ResolvedParafact(
            application.name,
            tuple(argument.value for argument in application.arguments),
            application.span,
            application.name_span,
        )

    def _clock_terms(self, application: Application) -> tuple[Expression, ...]:
        names = ("offset", "period")
        return self._by_position(application, names, complete=True)

    def _know(self, application: Application) -> None:
        """An atom's predicate has to be derived or an input; open inputs gain new ones."""
        name = application.name
        schema = self._readable.schemas.get(name)
        if schema is not None:
            self.inputs.setdefault(name, schema)
            self.column_names.setdefault(name, _input_names(schema))
        elif name not in self._derived:
            if self._readable.closed:
                known_names = [*self._derived, *self._readable.schemas, *self._readable.readable]
                self._report(
                    "S124", f"`{name}` is neither derived nor an input", application,
                    did_you_mean(name, known_names) or _known_predicates(known_names),
                )  # fmt: skip
            arity = len(application.arguments)
            known = self.column_names.setdefault(name, ("",) * arity)
            columns = tuple((column, "any") for column in known)
            self.inputs.setdefault(
                name,
                InputSchema(name, self._readable.default_kind, columns),
            )

    def _terms(self, application: Application, *, complete: bool) -> tuple[Expression, ...]:
        names = self.column_names.get(application.name, ())
        return self._by_position(application, names, complete=complete)

    def _by_position(
        self, application: Application, names: tuple[str, ...], *, complete: bool
    ) -> tuple[Expression, ...]:
        arguments = application.arguments
        named = bool(arguments) and arguments[0].name is not None
        odd = [each for each in arguments if (each.name is not None) is not named]
        if odd:
            self._report(
                "S123", "positional and named arguments do not mix", odd[0],
                "name all arguments, or none",
            )  # fmt: skip
            return tuple([each.value for each in arguments])
        if named:
            return self._named_terms(application, names, complete=complete)
        if len(arguments) != len(names):
            self._report(
                "S109", f"`{application.name}` has {_columns(len(names))}, not {len(arguments)}",
                application, _signature(application.name, names),
            )  # fmt: skip
        return tuple([each.value for each in arguments])

    def _named_terms(
        self, application: Application, names: tuple[str, ...], *, complete: bool
    ) -> tuple[Expression, ...]:
        given: dict[str, Expression] = {}
        for argument in application.arguments:
            name = argument.name or ""
            if name not in names:
                hint = did_you_mean(name, names) or _signature(application.name, names)
                if not any(names):
                    hint += (
                        "; columns have names where a resource that is checked with it gives them"
                    )
                self._report(
                    "S121", f"`{application.name}` has no column `{name}`", argument, hint
                )  # fmt: skip
            elif name in given:
                self._report(
                    "S121", f"the column `{name}` is given twice", argument, "give each column once"
                )
            given[name] = argument.value
        if complete and len(given) < len(names):
            self._report(
                "S109", f"`{application.name}` has {_columns(len(names))}, not {len(given)}",
                application, _signature(application.name, names),
            )  # fmt: skip
        wildcard = Wildcard(application.span)
        return tuple(given.get(name, wildcard) for name in names)


def _plain(arity: int) -> tuple[str, ...]:
    return tuple(f"c{index}" for index in range(arity))


def _input_names(schema: InputSchema) -> tuple[str, ...]:
    return tuple(name for name, _ in schema.columns)


def _columns(count: int) -> str:
    return "1 column" if count == 1 else f"{count} columns"


def _signature(name: str, names: tuple[str, ...]) -> str:
    return f"write {name}({', '.join(each or '_' for each in names)})"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The known name that was likely meant, as a hint; empty if none is close."""
    named = [each for each in known if each]
    same = [each for each in named if each.lower() == name.lower()]
    close = same or get_close_matches(name, named, n=1)
    return f"did you mean `{close[0]}`?" if close else ""


def _known_predicates(names: Iterable[str]) -> str:
    known = sorted(set(names))
    listed = ", ".join(known[:_NAMES_SHOWN]) + (", …" if len(known) > _NAMES_SHOWN else "")
    return f"there are {listed}" if listed else "declare it as an input, or write a rule for it"
