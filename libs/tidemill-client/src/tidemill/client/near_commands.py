"""Words that are no subcommand: what they may have meant, and what answers questions."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

_MEANT = {
    "ask": ("query", "sql", "why"), "show": ("get", "describe", "query"), "list": ("get",),
    "ls": ("get",), "status": ("get",), "lag": ("get", "timestamp"), "start": ("up",),
    "run": ("up", "eval"), "serve": ("up",), "server": ("up",), "console": ("up",), "ui": ("up",),
    "create": ("apply", "init"), "deploy": ("apply",), "add": ("apply", "insert"),
    "new": ("init",), "rm": ("delete",), "remove": ("delete",), "drop": ("delete",),
    "watch": ("subscribe",), "follow": ("subscribe",), "tail": ("subscribe",),
    "select": ("sql", "query"), "prove": ("why",), "proof": ("why",), "reason": ("why", "why-not"),
    "absent": ("why-not",), "send": ("push", "insert"), "write": ("insert", "push"),
    "validate": ("check",), "lint": ("check",), "format": ("fmt",), "diff": ("plan",),
    "preview": ("plan",), "alert": ("action",), "help": ("--help",), "version": ("--help",),
}  # fmt: skip
"""Commands by words of other tools and of speech."""

QUESTIONS = (
    "questions are asked by: tidemill query 'late(flight, delay)', tidemill sql 'select …', "
    "tidemill why 'late(\"UA1545\", 42)'"
)
_ASKING = frozenset({"ask", "select", "show", "prove", "proof", "reason"})


def unknown_command(written: str, commands: Sequence[str]) -> str:
    """The refusal of a word that is no subcommand, with the nearest ones in `commands`.

    A goal or a SELECT without its command is told which command takes it.
    """
    word = written.lower()
    known = {*commands, "--help"}
    begun = [each for each in commands if len(word) > 2 and each.startswith(word)]
    near = [*_MEANT.get(word, ()), *begun, *get_close_matches(word, commands, 3, cutoff=0.7)]
    near = [each for each in dict.fromkeys(near) if each in known]
    says = f"there is no command {written!r}"
    if near:
        says += f"; did you mean {' or '.join(f'tidemill {each}' for each in near)}?"
    words = word.split()
    if "(" in word or len(words) > 1 or word in _ASKING:
        return f"{says}{'' if near else ';'} {QUESTIONS}"
    return says if near else f"{says}; tidemill --help lists them, and {QUESTIONS}"
