"""Values of any types as bytes: many of one form are lists of numbers and texts, not objects.

Equal values of the language come back equal, each in its own type. The bytes of some values are
the same in every process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, pairwise
from typing import Any, TypeAlias

import msgspec

from tidemill.datalog.elements import FloatElement, TruthElement, element
from tidemill.datalog.state import decode_fields, encode_fields
from tidemill.errors import Corrupt

_Values: TypeAlias = "Sequence[Any]"
_Packed: TypeAlias = "list[Any]"

PLAIN, SETS, TUPLES, FIELDS, MIXED = range(5)
"""Forms: as they are; by their elements; by their places; as texts; of several forms."""
_ONE = {bool: PLAIN, int: PLAIN, float: PLAIN, str: PLAIN, type(None): PLAIN}
_FORMS: Mapping[type, int] = {**_ONE, frozenset: SETS, tuple: TUPLES}
_ELEMENTS: Mapping[type, type | None] = {
    int: None, str: None, FloatElement: float, TruthElement: bool,
}  # fmt: skip
"""Types of elements that are written as they are, or as another type."""
_WORD_MAX = 1 << 63


def pack_values(values: _Values) -> bytes:
    """The bytes of values of the language, and of tuples of them. Cost: O(size of values)."""
    return msgspec.msgpack.encode(_packed(values))


def unpack_values(packed: bytes) -> list[Any]:
    """The values of `pack_values`. Raises: Corrupt."""
    try:
        return _unpacked(msgspec.msgpack.decode(packed, type=list[Any]))
    except (msgspec.DecodeError, LookupError, TypeError, ValueError) as error:
        raise Corrupt(f"values cannot be read: {type(error).__name__}: {error}") from error


def _packed(values: _Values) -> _Packed:
    forms = [_FORMS.get(kind, FIELDS) for kind in map(type, values)]
    if len({*forms}) < 2:
        form = forms[0] if forms else PLAIN
        return _PACK[form](values)
    by_form: dict[int, list[Any]] = {form: [] for form in sorted({*forms})}
    for form, value in zip(forms, values, strict=True):
        by_form[form].append(value)
    return [MIXED, bytes(forms), *(_PACK[form](each) for form, each in by_form.items())]


def _plain(values: _Values) -> _Packed:
    if any(type(each) is int and not -_WORD_MAX <= each < _WORD_MAX for each in values):
        return _fields(values)
    return [PLAIN, values]


def _fields(values: _Values) -> _Packed:
    return [FIELDS, [encode_fields((each,)) for each in values]]


def _sets(values: Sequence[frozenset[Any]]) -> _Packed:
    kinds = set(map(type, chain.from_iterable(values)))
    if not kinds <= _ELEMENTS.keys():
        return _fields(values)
    if len(kinds) < 2:
        ordered = list(chain.from_iterable(map(sorted, values)))
    else:  # unequal elements may be equal numbers
        ordered = [e for each in values for e in sorted(each, key=_order)]
    if not kinds <= {int, str}:
        ordered = [_ELEMENTS[type(e)](e) if _ELEMENTS[type(e)] else e for e in ordered]  # type: ignore[misc]  # a type or None
    return [SETS, [*map(len, values)], _plain(ordered)]


def _order(value: Any) -> tuple[str, Any]:
    return type(value).__name__, value


def _tuples(values: Sequence[tuple[Any, ...]]) -> _Packed:
    sizes = [*map(len, values)]
    if len({*sizes}) == 1:  # column by column, each of one form
        columns = [*zip(*values, strict=True)]
        return [TUPLES, len(values), *map(_column, columns)]
    return [TUPLES, sizes, _packed([*chain.from_iterable(values)])]


def _column(values: _Values) -> _Packed:
    """Values of one place of tuples; a name that all have is there once."""
    if type(values[0]) is str and values.count(values[0]) == len(values):
        return [PLAIN, [values[0]]]
    return _packed(values)


_PACK: Mapping[int, Callable[[Any], _Packed]] = {
    PLAIN: _plain, SETS: _sets, TUPLES: _tuples, FIELDS: _fields,
}  # fmt: skip


def _unpacked(packed: _Packed) -> list[Any]:
    form, *rest = packed
    if form == PLAIN:
        found: list[Any] = rest[0]
        return found
    if form == FIELDS:
        return [decode_fields(text)[0] for text in rest[0]]
    if form == SETS:
        elements: Iterable[Any] = _unpacked(rest[1])
        return [*map(frozenset, _cut([*map(element, elements)], rest[0]))]
    if form == TUPLES and isinstance(rest[0], int):
        columns = [*map(_unpacked, rest[1:])]
        whole = [each if len(each) == rest[0] else each * rest[0] for each in columns]
        return [*zip(*whole, strict=True)] if whole else [()] * rest[0]
    if form == TUPLES:
        return [*map(tuple, _cut(_unpacked(rest[1]), rest[0]))]
    if form != MIXED:
        raise ValueError(f"a form {form} may be of a newer version")
    forms: bytes = rest[0]
    left = {
        each: iter(_unpacked(part)) for each, part in zip(sorted({*forms}), rest[1:], strict=True)
    }
    return [next(left[each]) for each in forms]


def _cut(values: list[Any], sizes: Sequence[int]) -> list[list[Any]]:
    """Values in pieces of some sizes, one after the other."""
    ends = [0]
    for size in sizes:
        ends.append(ends[-1] + size)
    return [values[begin:end] for begin, end in pairwise(ends)]
