"""Rules of prose, each as the list of its breaches in one file."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tidemill.testkit.prose.texts import GENERATED, Prose, parsed, prose_of, statements, tracked

WORDS_MAX = 25
"""Words of a sentence."""
COLUMNS_MAX = 100
"""Columns of a line of prose, without the addresses of its links."""

_OPENING = re.compile(
    r"[\W_]*(?:What|Who|Whoever|Whatever|How|That which|Where|Let|As(?! of\b))\b(?!-)"
)
_ADDRESS = re.compile(r"\]\([^)\s]*\)|https?://\S+")
_IRREGULAR = re.compile(
    r"begun|bound|bought|broken|brought|built|caught|chosen|done|drawn|driven|fed|forgotten|found"
    r"|given|gone|grown|heard|held|hidden|kept|known|laid|led|left|lent|lost|made|met|paid|proven"
    r"|said|seen|sent|shown|sold|sought|spent|spoken|stood|taken|taught|thought|thrown|told"
    r"|understood|won|written"
)
_NO_PARTICIPLE = re.compile(
    r"anything|bleed|bring|during|embed|everything|exceed|feed|king|need|nothing|ping|proceed"
    r"|ring|seed|shed|sing|something|speed|spring|string|succeed|thing"
)
_VALUES = frozenset({"asynccontextmanager", "fixture"})
"""Decorators under which an async function is the name of a value."""

_SECTION = re.compile(r"\b([A-Za-z][A-Za-z-]*\.md),? (?:section |rule )?([0-9]+(?:\.[0-9]+)?)\b")
_RULE_OF_STYLE = re.compile(r"\b[Ss]tyle (?:rule )?([0-9]+(?:\.[0-9]+)?)\b")
_PAGE = re.compile(r"\bdocs/[\w/-]+\.md\b")
_ANCHOR = re.compile(r"\b((?:docs/)?[\w/-]+\.md)#([\w-]+)")
_OF_BROKEN_PAGES = ("test_prose.py", "test_docs_site.py")
"""Tests whose texts cite pages that the tree must not have."""


@dataclass(frozen=True)
class Breach:
    """A place that breaks a rule of prose, and what stands there."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text[:90]}"


@dataclass(frozen=True)
class File:
    """A file with prose: a page or a module."""

    path: str
    text: str
    prose: Prose

    def breaches(self, places: Iterator[tuple[int, str]]) -> list[Breach]:
        """Breaches at these places of the file."""
        return [Breach(self.path, line, text) for line, text in places]


def openings(file: File) -> Iterator[tuple[int, str]]:
    """Sentences that begin with a word that stands for a noun; questions may."""
    for sentence in file.prose.sentences:
        if _OPENING.match(sentence.text) and not sentence.text.endswith("?"):
            yield sentence.line, sentence.text


def sentences(file: File) -> Iterator[tuple[int, str]]:
    """Sentences of more than `WORDS_MAX` words."""
    for sentence in file.prose.sentences:
        if sentence.text.count(" ") >= WORDS_MAX < sentence.words:
            yield sentence.line, f"{sentence.words} words: {sentence.text}"


def lines(file: File) -> Iterator[tuple[int, str]]:
    """Lines of more than `COLUMNS_MAX` columns; tables, fenced code and addresses may be wider."""
    for number, line in file.prose.lines:
        if len(_ADDRESS.sub("]", line)) > COLUMNS_MAX:
            yield number, f"{len(line)} columns: {line.strip()}"


def participles(file: File) -> Iterator[tuple[int, str]]:
    """Names of async functions that begin with a participle: an effect has an imperative verb."""
    if not file.path.endswith(".py") or "async def" not in file.text:
        return
    for node in statements(parsed(file.text)):
        if isinstance(node, ast.AsyncFunctionDef) and is_participle(node.name):
            named = {ast.unparse(each).split("(")[0].split(".")[-1] for each in node.decorator_list}
            if not named & _VALUES:
                yield node.lineno, f"async def {node.name}"


def is_participle(name: str) -> bool:
    """Whether the first word of a name is a participle."""
    word = name.lstrip("_").split("_")[0]
    if _NO_PARTICIPLE.fullmatch(word):
        return False
    return bool(_IRREGULAR.fullmatch(word) or re.fullmatch(r"\w{2,}(?:ed|ing)", word))


class Documents:
    """The pages of a tree, with their numbered sections and anchors."""

    def __init__(self, root: Path) -> None:
        self._texts = {name: (root / name).read_text() for name in tracked(root, "*.md")}

    def citations(self, file: File) -> Iterator[tuple[int, str]]:
        """Citations of a document, a section or an anchor that the tree does not have."""
        for number, line in enumerate(file.text.splitlines(), 1):
            if "md" in line or "tyle" in line:
                for cited in self.unresolved(line):
                    yield number, cited

    def cited(self, text: str) -> int:
        """Number of citations in a text."""
        kinds = (_SECTION, _RULE_OF_STYLE, _PAGE, _ANCHOR)
        return sum(len(kind.findall(text)) for kind in kinds)

    def unresolved(self, text: str) -> Iterator[str]:
        """Citations of one line that do not resolve."""
        for name, section in _SECTION.findall(text):
            if not self._has_section(name, section):
                yield f"{name} {section}"
        for section in _RULE_OF_STYLE.findall(text):
            if not self._has_section("STYLE.md", section):
                yield f"STYLE.md {section}"
        for page in _PAGE.findall(text):
            if page not in self._texts:
                yield page
        for page, anchor in _ANCHOR.findall(text):
            if anchor not in self._anchors(page):
                yield f"{page}#{anchor}"

    def _named(self, name: str) -> Iterator[str]:
        for path, text in self._texts.items():
            if path == name or path.endswith(f"/{name}"):
                yield text

    def _has_section(self, name: str, section: str) -> bool:
        number = re.escape(section)
        wanted = rf"^(?:#+ |\* \*\*|){number}(?:\.? |\*\*)"
        return any(re.search(wanted, text, re.M) for text in self._named(name))

    def _anchors(self, name: str) -> set[str]:
        headings = (
            heading
            for text in self._named(re.sub(r"^(?:\.\./)+", "", name))
            for heading in re.findall(r"^#+ +(.+?) *$", text, re.M)
        )
        return {
            re.sub(r"[^\w\- ]", "", each).strip().lower().replace(" ", "-") for each in headings
        }


def rules(root: Path) -> Mapping[str, Callable[[File], Iterator[tuple[int, str]]]]:
    """Rule → its breaches in one file of this tree."""
    return {
        "openings": openings,
        "sentences": sentences,
        "lines": lines,
        "participles": participles,
        "citations": Documents(root).citations,
    }


def files(root: Path) -> Iterator[File]:
    """Every file of the tree with prose or citations that somebody wrote."""
    for path in tracked(root, "*.py", "*.md", "*.toml", "*.proto", "*.lark"):
        if path.startswith("libs/tidemill-protos/") or path.endswith(_OF_BROKEN_PAGES):
            continue
        text = (root / path).read_text()
        if not (path.endswith(".md") and GENERATED.search(text[:800])):
            yield File(path, text, prose_of(path, text))


def breaches(root: Path) -> dict[str, list[Breach]]:
    """Rule → all of its breaches in the tree; one pass over its files."""
    checks = rules(root)
    found: dict[str, list[Breach]] = {rule: [] for rule in checks}
    for file in files(root):
        for rule, check in checks.items():
            found[rule] += file.breaches(check(file))
    return found
