"""The normal form of text, and texts that nobody can normalise in good time."""

from __future__ import annotations

import sys
import time
import unicodedata
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.errors import UsageError
from tidemill.time import MARKS_MAX, is_normal, normal, texts
from tidemill.time.texts import marks

LETTERS = "aé\u0301\u0316\u0f73\u0f81\u1100\u1161\u11a8ß漢\U0001e944\u09c7\u09be\uf900"
SOME = st.text(st.sampled_from(LETTERS), max_size=80)


def in_a_row(text: str) -> int:
    """The longest run of marks of a text, counted one by one."""
    longest = run = 0
    for sign in text:
        run = run + 1 if sign in marks() else 0
        longest = max(longest, run)
    return longest


@given(SOME)
def test_s1_normal_is_nfc_of_what_it_does_not_refuse(text: str) -> None:
    if in_a_row(text) > MARKS_MAX:
        assert not is_normal(text)
        with pytest.raises(UsageError, match="more than 30 combining marks in a row"):
            normal(text)
    else:
        assert normal(text) == unicodedata.normalize("NFC", text)
        assert is_normal(text) == (normal(text) == text)


@given(SOME.filter(lambda text: in_a_row(text) <= MARKS_MAX), st.integers(1, 9))
def test_s1_a_long_text_is_normalised_in_pieces_as_it_is_at_once(text: str, piece: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(texts, "PIECE", piece)
        assert normal(text) == unicodedata.normalize("NFC", text)
        assert is_normal(text) == (unicodedata.normalize("NFC", text) == text)


def test_s1_a_text_is_cut_before_no_character_that_composes_with_what_stands_before_it() -> None:
    """Letters that do were put behind another one by some canonical decomposition."""
    every = list(map(chr, range(sys.maxunicode + 1)))
    behind = {sign for one in every for sign in unicodedata.normalize("NFD", one)[1:]}
    assert "\u0301" in behind
    assert {"\u09be", "\u1161", "\u11a8"} <= {
        one for one in behind if not unicodedata.combining(one)
    }
    assert not any(map(texts._begins, behind))
    assert not any(texts._begins(one) for one in every if unicodedata.combining(one))
    assert all(map(texts._begins, ["a", "é", "α", "か", "각", "語", "豈", "ᄀ"]))


WITHOUT_ASCII = {
    "kana": "か" + "\u0316\u0301" * 15,
    "tibetan": "ཀ" + "\u0f73" * 30,
    "singletons": "\uf900",
    "hangul": "\u1100\u1161\u11a8",
    "bengali": "\u09c7\u09beক",
}


@pytest.mark.parametrize("letters", WITHOUT_ASCII)
def test_s1_a_long_text_without_ascii_is_in_pieces_too(
    letters: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = WITHOUT_ASCII[letters]
    text = part * ((1 << 18) // len(part))
    whole, at_once = unicodedata.normalize("NFC", text), list[int]()
    known = unicodedata.normalize

    def counted(form: Literal["NFC", "NFD"], piece: str) -> str:
        at_once.append(len(piece))
        return known(form, piece)

    monkeypatch.setattr(unicodedata, "normalize", counted)
    assert normal(text) == whole
    assert max(at_once) < texts.PIECE + texts.LOOKS


@given(st.integers(0, 70), st.integers(25, 36), st.text(max_size=40))
def test_s1_a_run_is_found_wherever_it_begins(before: int, run: int, after: str) -> None:
    text = "b" * before + "\u0316" * run + "c" + after
    assert (in_a_row(text) > MARKS_MAX) == (run > MARKS_MAX or in_a_row(after) > MARKS_MAX)
    if in_a_row(text) > MARKS_MAX:
        with pytest.raises(UsageError):
            normal(text)
    else:
        normal(text)


def test_s1_marks_are_all_characters_that_lengthen_a_run() -> None:
    found = {
        sign
        for sign in map(chr, range(sys.maxunicode + 1))
        if all(map(unicodedata.combining, unicodedata.normalize("NFD", sign)))
    }
    assert marks() == found


@pytest.mark.parametrize(
    "hostile",
    [
        "a" + "\u0301\u0316" * (1 << 18),
        "\u0f73" * (1 << 18),
        "a" * 500 + "\u0316" * (1 << 19),
    ],
)
def test_s1_a_mebibyte_of_marks_is_decided_at_once(hostile: str) -> None:
    marks()
    begun = time.process_time()
    with pytest.raises(UsageError):
        normal(hostile)
    assert not is_normal(hostile)
    assert time.process_time() - begun < 0.05


def test_s1_texts_within_the_limit_take_linear_time() -> None:
    def seconds(length: int) -> float:
        text = ("a" + "\u0316\u0301" * (MARKS_MAX // 2)) * (length // (MARKS_MAX + 1))
        begun = time.process_time()
        normal(text)
        return time.process_time() - begun

    small = min(seconds(1 << 15) for _ in range(5))
    assert min(seconds(1 << 19) for _ in range(2)) < 16 * 4 * small
