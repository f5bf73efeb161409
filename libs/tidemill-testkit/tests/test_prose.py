"""Prose keeps the rules of STYLE.md, everywhere."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from tidemill.testkit.prose import rules
from tidemill.testkit.prose.rules import Breach, File
from tidemill.testkit.prose.texts import prose_of, tracked

ROOT = Path(__file__).resolve().parents[3]
RULES = ("openings", "sentences", "lines", "participles", "citations")


@cache
def found() -> dict[str, list[Breach]]:
    return rules.breaches(ROOT)


def of(text: str, name: str = "some.py") -> File:
    return File(name, text, prose_of(name, text))


@pytest.mark.parametrize("rule", RULES)
def test_no_place_breaks_a_rule_of_prose(rule: str) -> None:
    assert not found()[rule], "\n".join(map(str, found()[rule]))


def test_every_document_and_section_that_is_cited_is_in_the_tree() -> None:
    documents = rules.Documents(ROOT)
    assert documents.cited("(language.md 4.3), STYLE.md 7, style 8, docs/reference/limits.md") == 4
    assert list(documents.unresolved("language.md 4.3, language.md 99.1, gone.md 1")) == [
        "language.md 99.1", "gone.md 1",
    ]  # fmt: skip
    assert list(documents.unresolved("style 5.5; docs/gone.md; docs/index.md#no")) == [
        "STYLE.md 5.5", "docs/gone.md", "docs/index.md#no",
    ]  # fmt: skip
    assert list(documents.unresolved("docs/reference/language.md#4-time")) == []


def test_documents_are_cited() -> None:
    documents = rules.Documents(ROOT)
    texts = ((ROOT / name).read_text() for name in tracked(ROOT, "libs/**.py", "docs/**.md"))
    assert sum(documents.cited(text) for text in texts) > 50


@pytest.mark.parametrize("word", ["What", "Who", "Whoever", "How", "That which", "Where", "Let"])
def test_a_word_that_stands_for_a_noun_begins_no_sentence(word: str) -> None:
    assert list(rules.openings(of(f'"""A guarantee. {word} it holds is told."""\n'))) == [
        (1, f"{word} it holds is told.")
    ]
    assert len(list(rules.openings(of(f"x = 1  # {word} it is\n")))) == 1
    assert len(list(rules.openings(of(f"* *{word}* is it\n", "page.md")))) == 1
    assert list(rules.openings(of(f"{word} holds it?\n", "page.md"))) == []
    assert list(rules.openings(of(f'x = "{word} is it"\n'))) == []


def test_a_sentence_has_25_words() -> None:
    words = " ".join(["`a b`", "[two words](x.md)", *["word"] * 22])
    assert list(rules.sentences(of(f"{words}.\nNext one, {words[:20]}.\n", "page.md"))) == []
    longer = f'def f() -> None:\n    """{words}\n    word."""\n'
    assert [line for line, _ in rules.sentences(of(longer))] == [2]
    assert [line for line, _ in rules.sentences(of(f"# {words}\n# word\n"))] == [1]
    assert list(rules.sentences(of(f"# {words}\n\n# word\n"))) == []
    assert [line for line, _ in rules.sentences(of(f"| {words} word | b |\n", "page.md"))] == [1]
    assert list(rules.sentences(of(f"```\n{words} word\n```\n", "page.md"))) == []


def test_code_in_a_docstring_is_no_sentence() -> None:
    words = " ".join(["word"] * 26)
    for code in (f"    \b\n    {words}\n    {words}\n", f"        {words}\n        {words}\n"):
        text = f'def f() -> None:\n    """Show it.\n\n{code}\n    {{after}}\n    """\n'
        assert list(rules.sentences(of(text.format(after="Prose.")))) == []
        assert len(list(rules.sentences(of(text.format(after=words))))) == 1


def test_a_line_of_prose_has_100_columns() -> None:
    wide = "a" * 101
    assert [line for line, _ in rules.lines(of(f"x = 1\n# {wide}\n"))] == [2]
    assert [line for line, _ in rules.lines(of(f'"""One.\n\n{wide}\n"""\n'))] == [3]
    assert [line for line, _ in rules.lines(of(f"{wide}\n", "page.md"))] == [1]
    for other in (f"[a]({wide})\n", f"| {wide} |\n", f"```\n{wide}\n```\n", f"\n    {wide}\n"):
        assert list(rules.lines(of(other, "page.md"))) == []
    assert list(rules.lines(of(f'x = "{wide}"\n'))) == []


def test_an_async_function_has_an_imperative_verb() -> None:
    names = ("written", "_forgotten_rows", "added", "taking", "_given_up")
    text = "".join(f"async def {name}(): ...\n" for name in names)
    assert [line for line, _ in rules.participles(of(text))] == [1, 2, 3, 4, 5]
    names = ("write", "feed", "bring", "read", "embed_all")
    text = "".join(f"async def {name}(): ...\n" for name in names)
    text += "def written(): ...\n@asynccontextmanager\nasync def serving(): ...\n"
    text += "@pytest.fixture\nasync def served(): ...\n"
    assert list(rules.participles(of(text))) == []
