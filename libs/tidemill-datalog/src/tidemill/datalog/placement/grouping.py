"""An aggregating rule in two: groups of one range, and who puts those of all ranges together.

The first rule derives one fact for each group of its range, however many matches that has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tidemill.datalog.dataflow.lingering import WORDS, keyed_atom
from tidemill.datalog.lattices import TALLIES
from tidemill.datalog.logical.expressions import type_of
from tidemill.datalog.logical.forms import (
    AtomForm,
    Constant,
    Expression,
    HeadForm,
    RuleForm,
    Type,
    Variable,
    Wildcard,
)
from tidemill.datalog.logical.partial import COUNTED, LOWER, PARTIAL, UPPER
from tidemill.datalog.placement.division import columns_of
from tidemill.datalog.placement.fact_lattices import FactLattices
from tidemill.datalog.placement.splitting import COLUMNS_MAX, Columns, Halves

_THIS = Constant(0)
"""In the place of the number of a range."""


def grouped(rule: RuleForm, place: int, columns: Columns, lattices: FactLattices) -> Halves | None:
    """The two rules, and the columns between them; None for a rule with too many.

    `place` is that of the rule among those of its program. Ranges have parts of its groups, as
    `FactLattices.whole_groups` says.
    """
    head, base = rule.head, rule.head.predicate
    rule = _divisible(rule, columns)
    parts = _parts(head)
    distinct = [term for name, terms in head.lattices if name == "count_distinct" for term in terms]
    groups = [
        *columns[base],
        *(("", WORDS[type_of(term, rule.types)]) for term in distinct),
        ("", WORDS[Type.INT]),
    ]
    told = [(name, kind) for name in sorted(parts) for kind in lattices.kinds(base, name)]
    between = (*groups, *(("", kind) for _, kind in told))
    if len(between) > COLUMNS_MAX:
        return None
    name, names = f"{PARTIAL}{place}:{base}", {name for name, _ in head.lattices}
    terms = (*head.terms, *distinct, _THIS)
    dropped = head.suppressed | names - parts.keys()
    mine = HeadForm(name, terms, lattices=tuple(parts.items()), suppressed=dropped)
    read = [Variable(f"#{at}") for at in range(len(between))]
    values: dict[str, list[Variable]] = {}
    for (of, _), variable in zip(told, read[len(groups) :], strict=True):
        values.setdefault(of, []).append(variable)
    merged = tuple(_merged(head, read[len(head.terms) :], values))
    rest = RuleForm(
        rule.number,
        replace(
            head, terms=tuple(read[: len(head.terms)]), lattices=merged,
            suppressed=head.suppressed | parts.keys() - names,
        ),
        (AtomForm(name, (*read[: len(terms) - 1], Wildcard(), *read[len(groups) :])),),
        (), (), 0,
        {each.name: Type(kind) for each, (_, kind) in zip(read, between, strict=True)},
    )  # fmt: skip
    return replace(rule, head=mine), rest, between


def _divisible(rule: RuleForm, columns: Columns) -> RuleForm:
    """The rule with a variable by which matches can be divided; it may name none."""
    if any(columns_of(atom) for atom in rule.atoms if not atom.is_clock):
        return rule
    types = dict(rule.types)
    atoms = tuple(
        keyed_atom(f"#key:{at}", atom, columns, types) for at, atom in enumerate(rule.atoms)
    )
    return replace(rule, atoms=atoms, types=types)


def _parts(head: HeadForm) -> dict[str, tuple[Expression, ...]]:
    """The lattices that facts of one range carry: of counts and sums those that can be added up."""
    found: dict[str, tuple[Expression, ...]] = {}
    for at, (name, terms) in enumerate(head.lattices):
        if name in TALLIES:
            kinds = (COUNTED,) if name == "count" else (COUNTED, UPPER, LOWER)
            found.update((f"{kind}{at}", terms) for kind in kinds)
        elif name != "count_distinct":
            found[name] = terms
    # Without any, facts were alternative derivations of one, of which the last end counts.
    return found or {f"{COUNTED}0": (Constant(1),)}


def _merged(
    head: HeadForm, distinct: Sequence[Variable], values: Mapping[str, Sequence[Variable]]
) -> Iterator[tuple[str, tuple[Expression, ...]]]:
    """The lattices of a head by what the facts of ranges carry."""
    left = iter(distinct)
    for at, (name, _) in enumerate(head.lattices):
        if name == "count_distinct":
            yield name, (next(left),)
        elif name in TALLIES:
            kinds = (COUNTED,) if name == "count" else (COUNTED, UPPER, LOWER)
            yield name, tuple(values[f"{kind}{at}"][0] for kind in kinds)
        else:
            yield name, tuple(values[name])
