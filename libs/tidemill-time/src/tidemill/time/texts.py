"""Text in the one form in which it is kept and compared: normal form C, with bounded runs of marks.

Normalising takes time quadratic in a run of combining marks, and holds the interpreter meanwhile.
`unicodedata.is_normalized` does the same if its quick answer is "maybe". Longer runs than any
writing has are therefore refused first, by the Stream-Safe limit of UAX #15 (section 13). The rest
is normalised piece by piece.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from functools import cache

from tidemill.errors import UsageError

MARKS_MAX = 30
"""Combining marks in a row that a text may have: the Stream-Safe limit."""

MARKS_FIRST, MARKS_LAST = 0x300, 0x1E94A
"""Between these are all characters that continue a run of marks."""

_DECOMPOSING = "\u0f73\u0f75\u0f81"
"""Characters that count as letters until they are taken apart, into marks alone."""

PIECE = 4_096
"""Characters that are normalised at once, or more up to one that may begin a text."""

LOOKS = MARKS_MAX + 2
"""Characters that are looked at for one that may begin a text: in a run of marks none does."""


def normal(text: str) -> str:
    """The text in normal form C; ASCII is itself.

    Takes time linear in the length, whatever the text. Raises: UsageError (CombiningMarks) if more
    than `MARKS_MAX` combining marks stand in a row.
    """
    if text.isascii():
        return text
    if not _stream_safe(text):
        raise UsageError(
            f"text refused: it has more than {MARKS_MAX} combining marks in a row;"
            " take away all but the first of them",
            reason="CombiningMarks",
        )
    return "".join([unicodedata.normalize("NFC", piece) for piece in _pieces(text)])


def is_normal(text: str) -> bool:
    """Whether `normal` gives the very same text; False if it refuses it. Takes linear time."""
    if text.isascii():
        return True
    return _stream_safe(text) and all(
        unicodedata.is_normalized("NFC", piece) for piece in _pieces(text)
    )


def _pieces(text: str) -> Iterator[str]:
    """The text in pieces, between which other threads may go on."""
    first, at = 0, PIECE
    while at < len(text):
        looked = range(at, min(at + LOOKS, len(text)))
        cut = next((place for place in looked if _begins(text[place])), None)
        if cut is not None:
            yield text[first:cut]
            first = at = cut
        at += PIECE
    yield text[first:]


def _begins(sign: str) -> bool:
    """Whether a character takes part in no normal form with anything that stands before it.

    Letters that compose with the ones before them are marks by their category, or Hangul's vowels
    and final consonants.
    """
    start = unicodedata.normalize("NFD", sign)[0]
    if unicodedata.combining(start) or unicodedata.category(start).startswith("M"):
        return False
    return not "\u1160" <= start <= "\u11ff"


@cache
def marks() -> frozenset[str]:
    """Characters whose canonical decomposition has no starter, so that they make a run longer."""
    between = map(chr, range(MARKS_FIRST, MARKS_LAST + 1))
    return frozenset(filter(unicodedata.combining, between)) | frozenset(_DECOMPOSING)


def _stream_safe(text: str) -> bool:
    """Whether no run of marks passes the limit.

    A longer run covers one of the characters that are `MARKS_MAX` + 1 apart, so that mostly these
    alone are looked at.
    """
    if len(text) <= MARKS_MAX:
        return True
    some = marks()
    step = MARKS_MAX + 1
    if some.isdisjoint(text[MARKS_MAX::step]):
        return True
    return not any(
        text[at] in some and _run(text, at) > MARKS_MAX for at in range(MARKS_MAX, len(text), step)
    )


def _run(text: str, at: int) -> int:
    """Number of marks in a row around the one at `at`, up to one beyond the limit."""
    some = marks()
    first = at
    while first and at - first <= MARKS_MAX and text[first - 1] in some:
        first -= 1
    end = at + 1
    while end < len(text) and end - first <= MARKS_MAX and text[end] in some:
        end += 1
    return end - first
