"""Whose names are whose: what an object reads of other namespaces, and who let it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from tidemill.datalog.diagnostics import ProgramErrors
from tidemill.datalog.parser import parse
from tidemill.runtime.resources import ActionSpec, ArrangementSpec, HoldSpec, Resource, ViewSpec
from tidemill_operator.objects import READ_BY, READABLE, Declared, Key, KnownResource


def reads(resource: Resource) -> frozenset[str]:
    """The names of all collections that a resource can read, as it writes them.

    Names that its program derives itself are left out; one that nothing has is among them.
    """
    spec = resource.spec
    if isinstance(spec, ActionSpec):
        return frozenset((spec.view,))
    if isinstance(spec, ArrangementSpec | HoldSpec):
        return frozenset((spec.collection,))
    if not isinstance(spec, ViewSpec):
        return frozenset()
    atoms, heads = _predicates(spec.program)
    return frozenset((*spec.inputs.values(), *(atoms - heads - spec.inputs.keys())))


@lru_cache(4_096)
def _predicates(program: str) -> tuple[frozenset[str], frozenset[str]]:
    """Predicates that the rules of a program name, and that they derive; none if it cannot be
    read.
    """
    try:
        rules = parse(program, "").rules
    except ProgramErrors:
        return frozenset(), frozenset()  # refused by whoever plans it
    atoms = {atom.application.name for rule in rules for atom in rule.atoms}
    return frozenset(atoms), frozenset(rule.head.application.name for rule in rules)


def outputs(resource: Resource) -> frozenset[str]:
    """The short names under which what a resource makes can be read, beside its own."""
    spec = resource.spec
    return _predicates(spec.program)[1] if isinstance(spec, ViewSpec) else frozenset()


def ungranted(
    each: Declared,
    objects: Sequence[Declared],
    first: Mapping[Key, str],
    known: Mapping[Key, KnownResource],
) -> str | None:
    """Reason for which an object may not read its inputs; None if it may, as far as namespaces go.

    An input of another namespace is read only if the object there grants it (`READ_BY`). Ownership
    is that of `owners`, here as `first`; without an object, that of Tidemill's resource.
    """
    resource = each.resource()
    if isinstance(resource, str):
        return None  # refused by whoever reads it
    wanted = reads(resource)
    heads = {name.partition("/")[0] for name in wanted}
    short = {name for name in wanted if "/" not in name}
    for namespace, kind, name, owner, made in _made(objects, first, known):
        if namespace == each.namespace or (owner and owner.may_be_read_by(each.namespace)):
            continue
        if name in heads or (made is not None and short & outputs(made)):
            return (
                f"{kind}/{name} belongs to the namespace {namespace}, and nobody there has granted "
                f'it to {each.namespace}: annotate it with {READ_BY}: "{each.namespace}"'
            )
    return None


def _made(
    objects: Sequence[Declared], first: Mapping[Key, str], known: Mapping[Key, KnownResource]
) -> Iterator[tuple[str, str, str, Declared | None, Resource | None]]:
    """(namespace, kind, name, object, resource) of all that can be read and belongs to a
    namespace.
    """
    declared = {o.key: o for o in objects if first.get(o.key) == o.uid and o.kind in READABLE}
    for (kind, name), there in known.items():
        if kind in READABLE and (kind, name) not in declared and there.namespace is not None:
            yield there.namespace, kind, name, None, there.resource
    for (kind, name), owner in declared.items():
        wanted = owner.resource()
        yield owner.namespace, kind, name, owner, None if isinstance(wanted, str) else wanted
