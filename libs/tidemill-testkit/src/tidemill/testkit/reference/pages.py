"""Parts that the generated pages have in common: heads, tables, and what sources say of a name."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterable, Sequence
from itertools import pairwise
from types import ModuleType

import msgspec

TARGET = "make reference"


def head(title: str, says: str) -> list[str]:
    """The beginning of a page: its title, that it is generated, and its first paragraph."""
    return [f"# {title}", "", f"`{TARGET}` writes this page from code.", *wrapped(says), ""]


def wrapped(text: str) -> list[str]:
    """A paragraph as lines of at most 100 columns."""
    return textwrap.wrap(
        " ".join(text.split()), 100, break_long_words=False, break_on_hyphens=False
    )


def paragraphs(text: str) -> list[str]:
    """The paragraphs of a docstring, wrapped, each behind an empty line."""
    return [line for each in text.split("\n\n") for line in ("", *wrapped(each))]


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table of Markdown; a cell is one line, and a bar in it is escaped."""
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    for row in rows:
        cells = (" ".join(cell.split()).replace("|", "\\|") for cell in row)
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def code(text: str) -> str:
    """A cell that shows code; empty for nothing."""
    return f"`{text}`" if text else ""


def sentence(text: str) -> str:
    """The text with a full stop behind, and an upper-case letter if a word begins it."""
    text = " ".join(text.split())
    first = text.partition(" ")[0].rstrip(",;:")
    begun = text[:1].upper() + text[1:] if first.isalpha() else text
    return begun + ("" if begun.endswith((".", ":", "!", "?")) else ".")


def first_line(documented: object) -> str:
    """The first line of the docstring of an object. Raises: LookupError if it has none."""
    text = inspect.getdoc(documented)
    if not text:
        raise LookupError(f"{documented!r} has no docstring, and stands in the reference")
    return text.partition("\n\n")[0]


def said_of_names(body: Sequence[ast.stmt]) -> dict[str, str]:
    """Name → the string that stands behind its assignment, of a class or a module."""
    found: dict[str, str] = {}
    for statement, behind in pairwise(body):
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        target = statement.target if isinstance(statement, ast.AnnAssign) else None
        name = target or (targets[0] if len(targets) == 1 else None)
        if (
            isinstance(name, ast.Name)
            and isinstance(behind, ast.Expr)
            and isinstance(behind.value, ast.Constant)
            and isinstance(behind.value.value, str)
        ):
            found[name.id] = " ".join(behind.value.value.split())
    return found


def said_of_fields(struct: type) -> dict[str, str]:
    """Field → its docstring, of a class and of the structs that it extends."""
    said: dict[str, str] = {}
    for each in reversed(struct.__mro__):
        if not issubclass(each, msgspec.Struct) or each is msgspec.Struct:
            continue
        (found,) = ast.parse(textwrap.dedent(inspect.getsource(each))).body
        assert isinstance(found, ast.ClassDef)
        said |= said_of_names(found.body)
    return said


def said_of_constants(module: ModuleType) -> dict[str, str]:
    """Constant → its docstring, of a module."""
    return said_of_names(ast.parse(inspect.getsource(module)).body)
