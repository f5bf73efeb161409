"""Stories: text files of commands and the answers they got, run again and reviewed as a difference.

A line that begins with `> ` is a command; the lines below it, up to an empty one or the next
command, are its answer. Lines that begin with `#` are for the reader.
"""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

Answer = Callable[[Sequence[str]], Awaitable[str]]
"""A function from a command, given as its words, to its answer."""


@dataclass(frozen=True, slots=True)
class Passage:
    """Lines for the reader, then one command and its answer; the last passage may have no
    command.
    """

    prose: tuple[str, ...]
    command: str | None
    answer: tuple[str, ...]


def read_story(text: str) -> list[Passage]:
    """The passages of a story."""
    passages: list[Passage] = []
    prose: list[str] = []
    answer: list[str] | None = None
    command = ""

    def finish() -> None:
        if answer is not None:
            passages.append(Passage(tuple(prose), command, tuple(answer)))
            prose.clear()

    for line in text.splitlines():
        if line.startswith("> "):
            finish()
            command, answer = line[2:], []
        elif answer is None or not line or line.startswith("#"):
            finish()
            answer = None
            prose.append(line)
        else:
            answer.append(line)
    finish()
    if prose:
        passages.append(Passage(tuple(prose), None, ()))
    return passages


def write_story(passages: Sequence[Passage]) -> str:
    """The text of a story."""
    lines: list[str] = []
    for passage in passages:
        lines += passage.prose
        if passage.command is not None:
            lines += [f"> {passage.command}", *passage.answer]
    return "\n".join(lines) + "\n"


async def retold(text: str, answer: Answer) -> str:
    """The story as it goes now: the same prose and commands, with the answers they get."""
    found = []
    for passage in read_story(text):
        lines: list[str] = []
        if passage.command is not None:
            lines = (await answer(shlex.split(passage.command))).splitlines()
        found.append(Passage(passage.prose, passage.command, tuple(lines)))
    return write_story(found)
