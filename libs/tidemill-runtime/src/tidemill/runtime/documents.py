"""YAML documents as plain values, with the place of every key and value.

Only what JSON can say is accepted, plus dates, which stay text. A key twice, a tag, or an alias
that contains itself is a problem with a place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import TypeAlias

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError
from ruamel.yaml.scanner import Scanner

from tidemill.runtime.problems import FieldPath, Position, Problem, field_name

Plain: TypeAlias = "bool | int | float | str | list[Plain] | dict[str, Plain] | None"

NODES_MAX, CHARS_MAX = 100_000, 4 << 20
"""More than anybody writes; aliases could make a short file endless."""
DOCUMENTS_MAX, TOKENS_MAX = 10_000, 400_000
"""Of a text, counted before a document of it is made: empty documents, commas and keys are work."""
LEVELS_MAX = 100
"""So deep a document nests at most, with what its aliases stand for."""
WHOLE_MAX = (1 << 63) - 1
"""The largest whole number; what is beyond is text."""
PROBLEMS_MAX = 100
"""Of a file that is wrong everywhere so many problems are told."""
_TOO_DEEP = f"it nests too deep: more than {LEVELS_MAX} levels"
_TAG = "tag:yaml.org,2002:"
_HINTS = {
    "'\\t'": "indent with spaces",
    "could not find expected ':'": "write KEY: VALUE; the lines of a text after | stand deeper than its key",
    "expected <block end>": "the keys of one mapping begin in one column, behind ordinary blanks",
    "expected ',' or ']'": "close the [ with ], and write a comma between two elements",
    "expected ',' or '}'": "close the { with }, and write a comma between two fields",
    "unexpected end of stream": "a quote opens there and is not closed",
    "mapping values are not allowed": "a text with a colon stands in quotes, or below its key after |",
}
"""Advice by message of the YAML reader."""


@dataclass(slots=True)
class Document:
    """One document: its value, and where each path is; a key's place is where its name is written.

    `blocks` says where the first line of a text in literal style (`|`) begins. `flawed` says that
    the value is not all that was written, because something there has no meaning.
    """

    file: str
    value: Plain
    places: dict[FieldPath, Position] = field(default_factory=dict)
    keys: dict[FieldPath, Position] = field(default_factory=dict)
    blocks: dict[FieldPath, Position] = field(default_factory=dict)
    flawed: bool = False

    def position(self, path: FieldPath) -> Position:
        """Position of the value at `path`, or of the nearest thing around it that is written."""
        while path and path not in self.places:
            path = path[:-1]
        return self.places.get(path, Position(self.file))

    def key_position(self, path: FieldPath) -> Position:
        """Position of the name of the last key of `path`."""
        return self.keys.get(path, self.position(path))


def parse_yaml(
    text: str,
    file: str,
    look: Callable[[], None] = lambda: None,
    floats: Callable[[str], float] = float,
) -> tuple[list[Document], list[Problem]]:
    """All documents of `text`, and what is wrong with them as YAML; empty documents are left
    out.

    `look` is called after each token: it may pause for other work. `floats` makes the numbers that
    are not written as whole ones.
    """
    documents: list[Document] = []
    problems: list[Problem] = []
    lines = cache(text.splitlines)  # of texts in blocks alone: it is long work for a long text
    token = [Position(file)]
    try:
        yaml = YAML(typ="safe", pure=True)
        yaml.Scanner = _scanner_with(look, file, token)
        yaml.composer.warn_double_anchors = False  # YAML allows them; each is a text in the log
        for node in yaml.compose_all(text):
            if node is not None and not _null(node):
                reader = _NodeReader(file, problems, lines, floats)
                document = Document(file, None, reader.places, reader.keys, reader.blocks)
                known = len(problems)
                with suppress(_Enough):
                    document.value = reader.read(node, ())
                document.flawed = len(problems) > known
                documents.append(document)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        if "end of stream" in (error.problem or ""):
            mark = error.context_mark or mark  # where it begins, not the end of the file
        place = Position(file, mark.line + 1, mark.column + 1) if mark else Position(file)
        context = f" {error.context}" if error.context else ""
        hint = next((hint for says, hint in _HINTS.items() if says in (error.problem or "")), "")
        problems.append(Problem(place, "", f"not YAML: {error.problem}{context}", hint))
    except (
        AssertionError,
        OverflowError,
        ValueError,
    ):  # the reader's own, of a directive or a character
        says = "not YAML 1.2: a version that is none, or a character beyond all that there are"
        problems.append(Problem(token[0], "", says))
    except ReaderError as error:
        before = text[: error.position].splitlines() or [""]
        place = Position(file, len(before), len(before[-1]) + 1)
        says = f"not YAML: the character U+{int(error.character):04X} may not stand in it"
        problems.append(Problem(place, "", says, 'in quotes "\\x07" stands for one'))
    except YAMLError as error:
        problems.append(Problem(Position(file), "", f"not YAML: {error}"))
    return documents, problems


def _scanner_with(look: Callable[[], None], file: str, token: list[Position]) -> type[Scanner]:
    """A scanner that looks up at each token, and leaves in `token` where it begins."""

    class Looking(Scanner):
        fetched = documents = 0

        def fetch_more_tokens(self) -> object:
            look()
            self.fetched += 1
            if self.fetched > TOKENS_MAX:
                self._refuse(f"more than {TOKENS_MAX:,} values, keys and marks in one file")
            token[:] = [Position(file, self.reader.line + 1, self.reader.column + 1)]
            found = super().fetch_more_tokens()
            # The reader of YAML goes down with what it reads.
            if self.flow_level + len(self.indents) > LEVELS_MAX:
                self._refuse(_TOO_DEEP)
            return found

        def fetch_document_start(self) -> None:
            self.documents += 1
            if self.documents > DOCUMENTS_MAX:
                self._refuse(f"more than {DOCUMENTS_MAX:,} documents in one file")
            super().fetch_document_start()

        def _refuse(self, says: str) -> None:
            raise MarkedYAMLError(problem=says, problem_mark=self.reader.get_mark())

    return Looking


class _Enough(Exception):
    """There is no use in reading on: the file repeats too much, or is wrong everywhere."""


class _NodeReader:
    """Turns the nodes of one document into values, and notes where they are."""

    def __init__(
        self,
        file: str,
        problems: list[Problem],
        lines: Callable[[], list[str]],
        floats: Callable[[str], float],
    ) -> None:
        self._file = file
        self._problems = problems
        self._lines = lines
        self._floats = floats
        self._open: set[int] = set()
        self._nodes = 0
        self._chars = 0
        self.places: dict[FieldPath, Position] = {}
        self.keys: dict[FieldPath, Position] = {}
        self.blocks: dict[FieldPath, Position] = {}

    def read(self, node: Node, path: FieldPath) -> Plain:
        self.places[path] = self._place(node)
        self._nodes += 1
        if isinstance(node, ScalarNode):
            self._count(node, path)
        enough = self._nodes > NODES_MAX or self._chars > CHARS_MAX
        if enough or id(node) in self._open or len(path) > LEVELS_MAX:
            if len(path) > LEVELS_MAX:
                self._report(node, path[:1], _TOO_DEEP)
                raise _Enough
            self._report(node, path, "an alias contains itself or repeats too much")
            if enough:
                raise _Enough
            return None
        if isinstance(node, ScalarNode):
            if node.style == "|":
                self._note_block(node, path)
            return self._scalar(node, path)
        if str(node.tag) not in (f"{_TAG}map", f"{_TAG}seq"):
            self._report(
                node, path, f"tags such as {str(node.tag).removeprefix(_TAG)} have no meaning here"
            )
        self._open.add(id(node))
        try:
            if isinstance(node, MappingNode):
                return dict(self._members(node, path))
            if isinstance(node, SequenceNode):
                return [self.read(item, (*path, i)) for i, item in enumerate(node.value)]
        finally:
            self._open.discard(id(node))
        self._report(node, path, "neither a mapping, a list nor a value")
        return None

    def _members(self, node: MappingNode, path: FieldPath) -> Iterator[tuple[str, Plain]]:
        seen: set[str] = set()
        for key, value in node.value:
            if not isinstance(key, ScalarNode):
                self._report(key, path, "a key must be text")
                continue
            name = str(key.value)
            self._count(key, path)
            inner = (*path, name)
            if name in seen:
                self._report(key, inner, "written twice")
                continue
            seen.add(name)
            self.keys[inner] = self._place(key)
            yield name, self.read(value, inner)

    def _scalar(self, node: ScalarNode, path: FieldPath) -> Plain:
        tag, text = str(node.tag), str(node.value)
        if not tag.startswith(_TAG):
            self._report(node, path, f"tags such as {tag} have no meaning here")
            return None
        try:
            match tag.removeprefix(_TAG):
                case "null":
                    return None
                case "bool":
                    return text.lower() in ("true", "yes", "on")
                case "int":
                    return _whole(text)
                case "float":
                    return self._floats(
                        text.replace("_", "").replace(".inf", "inf").replace(".nan", "nan")
                    )
                case "str" | "timestamp":
                    return text
                case other:
                    self._report(node, path, f"values of type {other} have no meaning here")
        except ValueError:
            return text
        return None

    def _note_block(self, node: ScalarNode, path: FieldPath) -> None:
        """Keep the first place of a block of text: the line after its `|`, at its indentation."""
        first = node.start_mark.line + 1
        value = str(node.value)
        for number, line in enumerate(value.split("\n"), first):
            if line.strip() and number < len(self._lines()):
                indent = self._lines()[number].find(line)
                if indent >= 0:
                    self.blocks[path] = Position(self._file, first + 1, indent + 1)
                return

    def _place(self, node: Node) -> Position:
        return Position(self._file, node.start_mark.line + 1, node.start_mark.column + 1)

    def _count(self, node: ScalarNode, path: FieldPath) -> None:
        """One more text: what aliases repeat counts each time."""
        text = str(node.value)
        self._chars += len(text)
        if not text.isascii() and not _has_characters_alone(text):
            self._report(node, path, "has half of a surrogate pair, which is no character")

    def _report(self, node: Node, path: FieldPath, says: str) -> None:
        self._problems.append(Problem(self._place(node), field_name(path), says))
        if len(self._problems) >= PROBLEMS_MAX:
            raise _Enough


def laid_out(text: str, begin: Position) -> str:
    """The text of a block as far down and as far in as it stands in its file, so that places
    agree.
    """
    margin = " " * (begin.column - 1)
    lines = (margin + line if line else line for line in text.split("\n"))
    return "\n" * (begin.line - 1) + "\n".join(lines)


def _null(node: Node) -> bool:
    return isinstance(node, ScalarNode) and str(node.tag) == f"{_TAG}null"


def _has_characters_alone(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _whole(text: str) -> int:
    """Raises: ValueError also for one of more digits than anybody counts to."""
    digits = text.replace("_", "")
    based = digits.lower().startswith(("0x", "0o", "-0x", "-0o"))
    number = int(digits, 0) if based else int(digits)
    if abs(number) > WHOLE_MAX:
        raise ValueError(text)
    return number
