"""Habits from other languages that the grammar refuses, with their correction."""

from __future__ import annotations

from collections.abc import Mapping

WALL_CLOCKS = frozenset(("now", "today", "current_time", "current_timestamp", "getdate", "sysdate"))
"""Names under which other languages read the time of day."""

ELSEWHERE: Mapping[str, str] = {
    "sqrt": "root", "power": "pow", "log10": "log", "regexp_replace": "regex_replace",
    "regexp_extract": "regex_extract", "regexp_matches": "regex_match", "strip": "trim",
    "split_part": "split", "lpad": "pad_start", "rpad": "pad_end", "strpos": "position",
}  # fmt: skip
"""Names of functions in other languages, with those of this one."""

_COMMENT = "a comment begins with //"
_QUOTES = 'write text between straight double quotes: "a"'
_SIGNS: Mapping[str, str] = {
    "#": _COMMENT, "--": _COMMENT, "<-": "write := between head and formula",
    **dict.fromkeys("“”„‘’«»", _QUOTES),
}  # fmt: skip
_CASES = "write one rule for each case: p(x, 1) := q(x) if x > 5; p(x, 2) := q(x) if x <= 5;"
_FIRST: Mapping[str, str] = {
    "select": "a rule derives facts: p(x) := q(x, y) if y > 5; for SQL ask tidemill sql",
    **dict.fromkeys(
        ("import", "include", "use"),
        "a program reads the inputs of its view, and other views by name under spec.inputs",
    ),
    "if": "the head stands first: p(x) := q(x) if x > 5;",
}
_WORDS: Mapping[str, str] = {
    "no": "write not q(…)",
    "then": "the head stands first: p(x) := q(x) if x > 5;",
    **dict.fromkeys(("case", "when", "else", "?"), _CASES),
    "like": 'write starts_with(x, "a"), ends_with(x, "a") or contains(x, "a")',
    "in": "write x == 1 || x == 2, or join with facts that hold the values",
    "is": "write is_null(x), or is_null(x) == false",
    "between": "write 1 <= x ^ x <= 2",
    "order": "facts have no order; sort the answer, as with tidemill sql",
    "limit": "facts have no order, so none is first; limit the answer, as with tidemill sql",
    "group": "the columns of the head are the group: p(k) @count(x) := q(k, x);",
    "having": "compare the lattice in a second rule: r(k) := p(k) @count(n) if n > 5;",
}
_UNITS_MS: Mapping[str, int] = {
    "ms": 1, "s": 1_000, "sec": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000,
}  # fmt: skip


def habit(token: str, doubled: str, number: str, *, begins: bool) -> str:
    """The correction of a token that was refused; empty where it is no known habit.

    `doubled` is the token with the one that touches it. `number` are the digits that it touches.
    Each is empty if there are none. `begins` says whether a rule begins with the token.
    """
    word = token.lower()
    if number and word in _UNITS_MS:
        return f"times are whole milliseconds: write {round(float(number) * _UNITS_MS[word])}"
    if begins and word in _FIRST:
        return _FIRST[word]
    return _SIGNS.get(doubled) or _SIGNS.get(token) or _WORDS.get(word, "")
