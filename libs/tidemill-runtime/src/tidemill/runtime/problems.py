"""Problems of a file that a person wrote: the place, the field, and the correction."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from tidemill.errors import UsageError

FieldPath: TypeAlias = tuple[str | int, ...]
"""Keys and indexes from the top of a document: ("spec", "columns", 0, "type")."""


SHOWN_CHARS_MAX = 300
"""So much of one text a message repeats; also longer texts take long to compare."""


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A place in a file; lines and columns count from 1, and are 0 if nobody knows."""

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        if not self.line:
            return self.file
        return (
            f"{self.file}:{self.line}:{self.column}" if self.column else f"{self.file}:{self.line}"
        )


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One mistake. `says` begins with what is there, `hint` says what to write."""

    position: Position
    field: str
    says: str
    hint: str = ""

    def __str__(self) -> str:
        field = f"{self.field}: " if self.field else ""
        hint = f"; {self.hint}" if self.hint else ""
        return f"{self.position}: {field}{self.says}{hint}"


def text_of(file: Path) -> str:
    """The text of a file that a person wrote. Raises: UsageError that says what to do, with the
    place of the first byte that is no UTF-8.
    """
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}", reason="file") from error
    except UnicodeDecodeError as error:
        raise refuse([no_text(str(file), error)], "file") from None


def no_text(file: str, error: UnicodeDecodeError) -> Problem:
    """The mistake of a file whose bytes are no UTF-8, at the first such byte."""
    before = error.object[: error.start].decode(errors="replace")
    line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
    wide = error.object[:2] in (b"\xff\xfe", b"\xfe\xff")
    says = f"not UTF-8: the byte 0x{error.object[error.start]:02X}"
    hint = "this is UTF-16: save the file as UTF-8" if wide else "save the file as UTF-8"
    return Problem(Position(file, line, column), "", says, hint)


def refuse(problems: Sequence[Problem], reason: str) -> UsageError:
    """The error that tells all problems at once, one a line, in the order of the file."""
    ordered = tuple(sorted(problems))
    return UsageError("\n".join(map(str, ordered)), reason=reason, problems=ordered)


def field_name(path: FieldPath) -> str:
    """A path as people write it: spec.columns[0].type."""
    name = ""
    for part in path:
        part = part if isinstance(part, int) else shortened(part)
        name += f"[{part}]" if isinstance(part, int) else f".{part}" if name else part
    return name


def shortened(text: str) -> str:
    """A text of a user, as far as a message repeats it."""
    if len(text) > SHOWN_CHARS_MAX:
        text = f"{text[: SHOWN_CHARS_MAX - 1]}…"
    return text.encode(errors="backslashreplace").decode()


def did_you_mean(word: object, allowed: Iterable[str]) -> str:
    """A hint: the closest of `allowed` if one is close, else all of them."""
    words = list(allowed)
    if len(str(word)) > SHOWN_CHARS_MAX:
        return "nothing that is known is so long"
    folded = {known.lower().replace("-", "").replace("_", ""): known for known in words}
    written = str(word).lower().replace("-", "").replace("_", "")
    close = difflib.get_close_matches(written, folded, n=1, cutoff=0.6)
    if close:
        return f'did you mean "{folded[close[0]]}"?'
    if not words:
        return "nothing is allowed here"
    return f"allowed: {', '.join(words)}"


SpecDocument: TypeAlias = dict[str, Any]  # a spec that fits its schema


@dataclass(frozen=True, slots=True)
class Broken:
    """A rule that does not hold, at a path within the spec."""

    path: FieldPath
    says: str
    hint: str = ""
