"""Prose of the tree: sentences of docstrings, comments and pages, each with its place."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

GENERATED = re.compile(r"`make (?:reference|formalism|charts)` (?:writes|from)|^# Generated ", re.M)
"""Mark of a generated page: its sentences are counted in the code that they come from."""

_LEXEME = re.compile(
    r"[rbfuRBFU]{0,2}(?P<quote>\"\"\"|''')(?:\\.|(?!(?P=quote)).)*(?P=quote)"
    r"|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|(?P<comment>#[^\n]*)",
    re.S,
)
"""A string or a comment of Python; of two that overlap the first one counts."""
_DIRECTIVE = re.compile(r"#\s*(?:type:|noqa|fmt:|pragma|ruff|!)|#:")
_AS_IT_IS = "\b"
"""The line before a paragraph that Click prints as it is."""
_FENCE = re.compile(r"^\s*(?:```|~~~)")
_ITEM = re.compile(r"^\s*(?:[*+-]|\d+\.)\s+")
_HEADING_OR_RULE = re.compile(r"^\s*(?:#|<|\||:::|---+$|===+$|!!!)")
_CODE = re.compile(r"(`+)(?:(?!\1).)+\1", re.S)
_LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\](?:\([^)\s]*\)|\[[^\]]*\])")
_URL = re.compile(r"https?://\S+")
_SENTENCE_END = re.compile(r"(?<=[.!?])[\"')\]*_”]*\s+(?=[A-Z0-9\"'(\[*_“])")


@dataclass(frozen=True)
class Sentence:
    """A sentence without markup, and the line on which its paragraph begins."""

    line: int
    text: str

    @property
    def words(self) -> int:
        """Words of the sentence; a span of code and a link of no text are one word each."""
        return sum(any(c.isalnum() for c in word) for word in self.text.split())


@dataclass(frozen=True)
class Prose:
    """The prose of one file: its sentences, and its lines as they stand in the file."""

    sentences: tuple[Sentence, ...]
    lines: tuple[tuple[int, str], ...]


def tracked(root: Path, *patterns: str) -> list[str]:
    """Files that git tracks or would track, as sorted paths from the root."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns],
        cwd=root, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return sorted({line for line in listed.stdout.splitlines() if (root / line).exists()})


def prose_of(name: str, text: str) -> Prose:
    """The prose of a page (`.md`), or of the docstrings and comments of a module (`.py`)."""
    if name.endswith(".md"):
        return _of_page(text)
    return _of_module(text) if name.endswith(".py") else Prose((), ())


def sentences_of(paragraphs: Iterable[tuple[int, str]]) -> Iterator[Sentence]:
    """The sentences of paragraphs, each paragraph with the line on which it begins."""
    for line, paragraph in paragraphs:
        plain = _URL.sub("URL", _LINK.sub(r"\1", _CODE.sub("CODE", paragraph)))
        for sentence in _SENTENCE_END.split(" ".join(plain.split())):
            if sentence:
                yield Sentence(line, sentence)


def _of_page(text: str) -> Prose:
    paragraphs, lines = _Paragraphs(), []
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if _FENCE.match(line):
            fenced = not fenced
            paragraphs.end()
        elif fenced:
            continue
        elif line.startswith("    ") and not paragraphs.open:
            continue  # code
        elif line.lstrip().startswith("|"):
            paragraphs.end()
            for cell in re.split(r"(?<!\\)\|", line):
                paragraphs.add(number, cell)
                paragraphs.end()
        else:
            lines.append((number, line))
            paragraphs.add(number, line)
    paragraphs.end()
    return Prose(tuple(sentences_of(paragraphs.ended)), tuple(lines))


def _of_module(text: str) -> Prose:
    source = text.splitlines()
    paragraphs, lines = _Paragraphs(), []
    for first, string in _docstrings(parsed(text)):
        last = first + string.count("\n")
        lines += [(n, source[n - 1]) for n in range(first, min(last, len(source)) + 1)]
        for number, line in _without_code(first, string):
            paragraphs.add(number, line)
        paragraphs.end()
    after = -1
    for number, own, comment in _comments(text):
        lines.append((number, source[number - 1]))
        if not own or number != after + 1:
            paragraphs.end()
        paragraphs.add(number, comment)
        if not own:
            paragraphs.end()
        after = number
    paragraphs.end()
    return Prose(tuple(sentences_of(paragraphs.ended)), tuple(sorted(set(lines))))


@lru_cache(1)
def parsed(text: str) -> ast.Module:
    """The module of a text, parsed once for what asks one after the other. Not to be changed."""
    return ast.parse(text)


def statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Every statement of a module, however deep; a tenth of its nodes."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            within = getattr(node, field, None)
            if isinstance(within, list):
                waiting += within
                yield from within


def _docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Every string that is a statement, with its first line."""
    for statement in statements(tree):
        if isinstance(statement, ast.Expr):
            value = statement.value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield statement.lineno, value.value


def _without_code(first: int, string: str) -> Iterator[tuple[int, str]]:
    """The lines of a docstring with their numbers; empty ones in place of code.

    Code is a paragraph that is indented by four columns more, or that Click prints as it is.
    """
    deep = min((len(s) - len(s.lstrip()) for s in string.splitlines()[1:] if s.strip()), default=0)
    code, begins = False, False
    for number, line in enumerate(string.splitlines(), first):
        if begins or line.strip() == _AS_IT_IS:
            code = line.strip() == _AS_IT_IS or line.startswith(" " * (deep + 4))
        begins = not line.strip(" ")
        yield number, "" if code and not begins else line


def _comments(text: str) -> Iterator[tuple[int, bool, str]]:
    """Line, whether nothing precedes it on its line, and the text of each comment."""
    line, behind = 1, 0
    for found in _LEXEME.finditer(text):
        line += text.count("\n", behind, found.start())
        behind = found.start()
        if found["comment"] is not None and not _DIRECTIVE.match(found[0]):
            start = text.rfind("\n", 0, found.start()) + 1
            before = text[start : found.start()]
            yield line, not before.strip(), found[0].lstrip("#")


class _Paragraphs:
    """Lines, put together into paragraphs: an empty line, an item or a heading ends one."""

    def __init__(self) -> None:
        self.ended: list[tuple[int, str]] = []
        self._open: list[str] = []
        self._line = 0

    @property
    def open(self) -> bool:
        """Whether the next line may continue a paragraph."""
        return bool(self._open)

    def add(self, number: int, line: str) -> None:
        """Append a line to the paragraph, or begin the next one with it."""
        if not line.strip() or _HEADING_OR_RULE.match(line):
            self.end()
            return
        if _ITEM.match(line):
            self.end()
            line = _ITEM.sub("", line)
        if not self._open:
            self._line = number
        self._open.append(line)

    def end(self) -> None:
        """End the paragraph, if one is open."""
        if self._open:
            self.ended.append((self._line, "\n".join(self._open)))
        self._open = []
