"""Functions of texts: parts, patterns, forms and hashes.

Patterns are those of RE2, the engine that Arrow brings. Its time is linear in the text, so no
pattern of a user can hold a view up. It has no back references and no look-around.
"""

from __future__ import annotations

import hashlib
import re
from decimal import ROUND_HALF_EVEN, Decimal, localcontext
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidemill.datalog.records import format_float, typed_of
from tidemill.datalog.scalar import ScalarFunction, function, made, strict, text_of, whole_of
from tidemill.datalog.values import (
    NEGATIVE_INDEX,
    NOT_A_FORM,
    NOT_A_PATTERN,
    OVERFLOW,
    TEXT_MAX,
    WRONG_TYPE,
    Failed,
    Value,
)
from tidemill.time.typed import write_typed

PATTERN_CHARS_MAX = 1_000
"""Characters of a pattern of a regular expression."""
PARTS_A_CALL = 10_000
"""Parts of a text that are made at once: half a millisecond."""
DIGITS_MAX = 30
"""Digits after the point that `format` writes."""


def _split(text: Value, separator: Value, n: Value) -> Value:
    """Part `n` of the text between separators, from 0, or from -1 at the end; null beyond."""
    whole, between, at = text_of(text), text_of(separator), whole_of(n)
    count = whole.count(between) + 1 if between else 1
    if not -count <= at < count:
        return None
    if not between:
        return whole
    at %= count
    while at >= PARTS_A_CALL:  # a call of the library lets no other thread run
        whole = whole.split(between, PARTS_A_CALL)[-1]
        at -= PARTS_A_CALL
    return made(whole.split(between, at + 1)[at])


def _split_count(text: Value, separator: Value) -> Value:
    """The number of parts of the text between separators."""
    whole, between = text_of(text), text_of(separator)
    return whole.count(between) + 1 if between else 1


def _trim(text: Value, characters: Value = " \t\r\n") -> Value:
    """The text without the characters at its ends; without white space if none are named."""
    return made(text_of(text).strip(text_of(characters)))


def _replace(text: Value, part: Value, by: Value) -> Value:
    """The text with `by` in place of every `part`, from left to right."""
    whole, old, new = text_of(text), text_of(part), text_of(by)
    if not old:
        return whole
    if len(whole) + whole.count(old) * (len(new) - len(old)) > TEXT_MAX:
        raise Failed(OVERFLOW)
    return made(whole.replace(old, new))


def _position(text: Value, part: Value) -> Value:
    """The index of the first such part of the text, from 0; null if there is none."""
    found = text_of(text).find(text_of(part))
    return None if found < 0 else found


def _reverse(text: Value) -> Value:
    """The characters of the text from the last to the first."""
    return made(text_of(text)[::-1])


def _pad(text: Value, size: Value, fill: Value, *, before: bool) -> str:
    whole, wanted, sign = text_of(text), whole_of(size), text_of(fill)
    if wanted < 0 or len(sign) != 1:
        raise Failed(NEGATIVE_INDEX if wanted < 0 else WRONG_TYPE)
    if wanted > TEXT_MAX:
        raise Failed(OVERFLOW)
    return made(whole.rjust(wanted, sign) if before else whole.ljust(wanted, sign))


def _pad_start(text: Value, size: Value, fill: Value = " ") -> Value:
    """The text with the one character `fill` before it, up to `size` characters."""
    return _pad(text, size, fill, before=True)


def _pad_end(text: Value, size: Value, fill: Value = " ") -> Value:
    """The text with the one character `fill` behind it, up to `size` characters."""
    return _pad(text, size, fill, before=False)


_FIELD = re.compile(r"\{\{|\}\}|\{(?:\.([0-9]{1,2}))?\}|[{}]")


def _format(form: Value, *values: Value) -> Value:
    """The form with a value in place of each `{}`; `{.2}` writes a number with so many digits."""
    left, room = list(values), TEXT_MAX

    def written(match: re.Match[str]) -> str:
        nonlocal room
        if match.group() in ("{{", "}}"):
            return match.group()[0]
        if match.group() in ("{", "}") or not left:
            raise Failed(NOT_A_FORM)
        value = left.pop(0)
        told = shown(value) if match[1] is None else _rounded(value, int(match[1]))
        room -= len(told)
        if room < 0:
            raise Failed(OVERFLOW)
        return told

    text = _FIELD.sub(written, text_of(form))
    if left:
        raise Failed(NOT_A_FORM)
    return made(text)


def shown(value: Value) -> str:
    """The value as a program writes it, a text without its quotes. Raises: Failed(wrong type)."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value
    if type(value) is int:
        return str(value)
    if type(value) is float:
        return format_float(value)
    if (typed := typed_of(value)) is not None:
        return write_typed(typed)
    raise Failed(WRONG_TYPE)


def _rounded(value: Value, digits: int) -> str:
    """A number with `digits` after the point; a half goes to the even neighbour."""
    number = not isinstance(value, bool) and isinstance(value, int | float | Decimal)
    if digits > DIGITS_MAX or not number:
        raise Failed(NOT_A_FORM if digits > DIGITS_MAX else WRONG_TYPE)
    exact = Decimal(value)  # type: ignore[arg-type]  # a number, as just tested
    if not exact.is_finite():
        raise Failed(OVERFLOW)
    with localcontext(prec=400):  # of every finite float, and the digits
        text = f"{exact.quantize(Decimal(1).scaleb(-digits), ROUND_HALF_EVEN):f}"
    return text.removeprefix("-") if not text.strip("-0.") else text


def _regex_match(text: Value, pattern: Value) -> Value:
    """Whether the pattern matches somewhere in the text."""
    found: bool = _matched(pc.match_substring_regex, text, pattern).as_py()
    return found


def _regex_extract(text: Value, pattern: Value, group: Value = -1) -> Value:
    """The group of the first match, by default the first one; the match is group 0; null for none.

    Without groups the default is the match.
    """
    _refuse_long(pattern)
    named, groups = _named(text_of(pattern))
    at = min(1, groups) if group == -1 else whole_of(group)
    if not 0 <= at <= groups:
        raise Failed(NEGATIVE_INDEX if at < 0 else NOT_A_PATTERN)
    found = _matched(pc.extract_regex, text, named).as_py()
    return None if found is None else made(found[f"g{at}"])


def _regex_replace(text: Value, pattern: Value, by: Value) -> Value:
    r"""The text with `by` in place of every match; `\1` in it stands for the first group."""
    whole = text_of(text)
    if len(whole) * (len(text_of(by)) + 1) > 100 * TEXT_MAX:
        raise Failed(OVERFLOW)
    new: str = _matched(
        lambda value, *, pattern: pc.replace_substring_regex(value, pattern, text_of(by)),
        whole, pattern,
    ).as_py()  # fmt: skip
    return made(new)


def _refuse_long(pattern: Value) -> None:
    if len(text_of(pattern)) > PATTERN_CHARS_MAX:
        raise Failed(NOT_A_PATTERN)


def _matched(kernel: Any, text: Value, pattern: Value) -> Any:
    """Result of a kernel of Arrow. Raises: Failed(not a pattern)."""
    _refuse_long(pattern)
    try:
        return kernel(pa.array([text_of(text)]), pattern=pattern)[0]
    except pa.ArrowInvalid:
        raise Failed(NOT_A_PATTERN) from None


_OPENING = re.compile(
    r"\\Q.*?(?:\\E|$)|\\.|\[\^?\]?(?:\\.|\[:\^?\w+:\]|[^\]])*(?:\]|\Z)|\((?!\?)|\(\?P?<\w+>",
    re.DOTALL,
)


@lru_cache(maxsize=1_024)
def _named(pattern: str) -> tuple[str, int]:
    """(the pattern whose groups are named g0, the whole match, g1, …; the number of groups)."""
    groups = 0

    def name(match: re.Match[str]) -> str:
        nonlocal groups
        if not match.group().startswith("("):
            return match.group()
        groups += 1
        return f"(?P<g{groups}>"

    inner = _OPENING.sub(name, pattern)
    return f"(?P<g0>{inner})", groups


def _hash(x: Value) -> Value:
    """A whole number of 64 bits for a text or bytes, the same in every process: a part of the
    SHA-256.
    """
    return int.from_bytes(_digest(x)[:8], "big", signed=True)


def _sha256(x: Value) -> Value:
    """The SHA-256 of a text in UTF-8 or of bytes, as 64 hexadecimal digits."""
    return _digest(x).hex()


def _digest(x: Value) -> bytes:
    return hashlib.sha256(x if isinstance(x, bytes) else text_of(x).encode()).digest()


TEXT_FUNCTIONS: tuple[ScalarFunction, ...] = (
    function("split", _split, ("text", "text", "int"), "text"),
    function("split_count", _split_count, ("text", "text"), "int"),
    function("trim", _trim, ("text", "text"), "text", optional=1),
    function("replace", _replace, ("text", "text", "text"), "text"),
    function("position", _position, ("text", "text"), "int"),
    function("reverse", _reverse, ("text",), "text"),
    function("pad_start", _pad_start, ("text", "int", "text"), "text", optional=1),
    function("pad_end", _pad_end, ("text", "int", "text"), "text", optional=1),
    ScalarFunction("format", 1, None, strict(_format), gives="text"),
    function("regex_match", _regex_match, ("text", "text"), "bool"),
    function("regex_extract", _regex_extract, ("text", "text", "int"), "text", optional=1),
    function("regex_replace", _regex_replace, ("text", "text", "text"), "text"),
    function("hash", _hash, ("text",), "int", also=((("bytes",), "int"),)),
    function("sha256", _sha256, ("text",), "text", also=((("bytes",), "text"),)),
)
