"""State between windows: solutions that live on without the facts that established them.

The rows are plain and the same as long as a solution lives unchanged. So the difference between two
states is the difference of two multisets of rows, and a state can be kept as a collection.

Names are the version of a form: the kind of a row, and the tags in its text. A form that means
something else has another name, and a process refuses names that it does not know. So none goes on
from what a newer one has written and it would misread.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tidemill.datalog.elements import TruthElement, element
from tidemill.datalog.lattices import TALLIES, TOLD, Identity, Parafacts, Tally, tally
from tidemill.datalog.presence import Instant
from tidemill.datalog.records import typed_of
from tidemill.datalog.sums import Wide
from tidemill.errors import Corrupt
from tidemill.time.typed import READ, TYPE_NAMES, write_typed

StateRow: TypeAlias = "tuple[int, str, str]"  # rule, kind, JSON of the solution
NO_RULE = -1
"""In the place of a rule in the rows that belong to none."""

_COMPACT = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))

_OF_FACTS, _OF_MATCHES = "members", "matches"
"""The tags of contributions of facts of inputs, and of those of matches, which values identify.
Earlier versions had numbers of one engine, by the first tag; they do not know the second.
"""
_OF_VALUES = "told"
"""The tag where some are sums and averages of facts of inputs, each with its value in its identity.

Earlier versions identified them by `_GIVEN` and the fact alone, by the other tags. Their sums are
read as what they are; they do not know this tag.
"""
_GIVEN = "given"
_OTHERWISE = (
    "the state has counts or sums of an earlier version, which identified what they add up by "
    "numbers that are lost: delete the view and apply it anew"
)

ESTABLISHED = "established"
LINGERING = "lingering"
OPEN = "open"
"""Many solutions in one row."""
AHEAD = "ahead"
"""The same, of a rule with `~expires` in its body whose solutions are established ahead."""


@dataclass(frozen=True, slots=True)
class Share:
    """The solutions of a rule with which one range goes on: by the key of one of their facts.

    `atom` is the place of the fact in the body, `columns` are those of the key, 0 the time.
    `holds` says whether a key is one of the range, `held` the same of many as columns of Arrow.
    """

    atom: int
    columns: tuple[int, ...]
    holds: Callable[[Sequence[Any]], bool]
    held: Callable[[Sequence[Any]], Any]


Shares: TypeAlias = "Mapping[int, Share]"
"""The shares of a range by the numbers of rules; a rule without one is not divided."""
WHOLE: Shares = {}
"""All solutions of a state."""


@dataclass(frozen=True, slots=True)
class EstablishedSolution:
    """A solution of a rule whose head has its own expiry: it lives until then, whatever ends.

    `identity` is (rule, keys of its facts, parafacts it matched). `versions` are the parafacts it
    passes, each with the first instant at which the body gave them.
    """

    identity: tuple[Any, ...]
    arguments: tuple[Any, ...]
    time: int | None
    expires: Instant
    values: tuple[Any, ...]
    versions: tuple[tuple[Instant, Parafacts], ...]


@dataclass(frozen=True, slots=True)
class LingeringSolution:
    """A match of a rule with `~expires` in its body: it lives while the other facts are present.

    `keys` are the facts of the match, `values` the variables that it bound. `versions` are instants
    at which the facts that may leave changed, with their (expires, parafacts), one for each atom.
    """

    keys: tuple[tuple[Any, ...], ...]
    values: tuple[Any, ...]
    versions: tuple[tuple[Instant, tuple[tuple[Instant, Parafacts], ...]], ...]


def established_row(rule: int, solution: EstablishedSolution) -> StateRow:
    """A solution with an expiry of its own as a row."""
    fields = (
        solution.identity, solution.arguments, solution.time, solution.expires, solution.values,
        solution.versions,
    )  # fmt: skip
    return rule, ESTABLISHED, encode_fields(fields)


def encode_fields(fields: tuple[Any, ...]) -> str:
    """Values of facts and solutions as one line of JSON; equal fields give equal lines."""
    return _COMPACT.encode(_encoded(fields))


def decode_fields(text: str) -> tuple[Any, ...]:
    """The fields that `encode_fields` wrote.

    Raises: Corrupt for a text that it has not written, or a tally that cannot be gone on with.
    """
    try:
        decoded = _decoded(json.loads(text))
    except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError) as error:
        raise Corrupt(f"a row of state cannot be read: {type(error).__name__}: {error}") from error
    if not isinstance(decoded, tuple):
        raise Corrupt("a row of state holds no fields")
    return decoded


def _encoded(value: Any) -> Any:
    """JSON in which lists, sets, tallies and infinities differ."""
    if isinstance(value, tuple):
        return [_encoded(each) for each in value]
    if isinstance(value, frozenset):
        return {"set": sorted((_encoded(each) for each in value), key=json.dumps)}
    if isinstance(value, Tally):
        members = [[_encoded(name), _encoded(each)] for name, each in value.members.items()]
        tag = _OF_MATCHES if _by_match(value.members) else _OF_FACTS
        tag = _OF_VALUES if any(name[0] == TOLD for name in value.members) else tag
        return {"tally": value.kind, tag: sorted(members, key=json.dumps)}
    if type(value) is TruthElement:
        return bool(value)
    if type(value) is Wide:
        return {"wide": int(value)}
    if isinstance(value, float) and math.isinf(value):
        return {"inf": 1 if value > 0 else -1}
    if (typed := typed_of(value)) is not None:
        return {"type": TYPE_NAMES[type(typed)], "text": write_typed(typed)}
    return value


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_decoded(each) for each in value)
    if isinstance(value, dict):
        return _of_tags(value)
    return value


def _of_tags(value: dict[str, Any]) -> Any:
    """The value that an object of JSON stands for.

    Raises: ValueError for tags that are not known.
    """
    match value:
        case {"set": values, **rest} if not rest:
            return frozenset(element(_decoded(each)) for each in values)
        case {"wide": number, **rest} if not rest:
            return Wide(number)
        case {"type": name, "text": text, **rest} if not rest:
            return READ[name](text)
        case {"inf": sign, **rest} if not rest:
            return math.inf * sign
        case {"tally": kind, **rest} if kind in TALLIES and len(rest) == 1:
            ((tag, told),) = rest.items()
            if tag not in (_OF_FACTS, _OF_MATCHES, _OF_VALUES):
                raise ValueError(f"contributions by {tag} may be of a newer version")
            members = dict(_contribution(_decoded(name), _decoded(each)) for name, each in told)
            if tag == _OF_FACTS and _by_match(members):
                raise Corrupt(_OTHERWISE)
            return tally(kind, members)
    raise ValueError(f"{sorted(value)} may be of a newer version")


def _contribution(name: Identity, value: Any) -> tuple[Identity, Any]:
    """A contribution as it is identified now."""
    return ((TOLD, *name[1:], value) if name[0] == _GIVEN else name), value


def _by_match(members: Mapping[Identity, Any]) -> bool:
    """Whether some contributions are those of matches, and not of an input's facts."""
    return any(type(identity[0]) is int for identity in members)
