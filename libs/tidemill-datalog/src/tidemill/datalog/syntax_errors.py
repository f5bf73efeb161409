"""Which mistake a stuck parser stands before: codes E001 … E014, their places, and what to write."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from lark import Lark, Token
from lark.exceptions import UnexpectedCharacters, UnexpectedInput

from tidemill.datalog.diagnostics import Diagnostic, at_point

_COMPARISONS = frozenset(("<", "<=", ">", ">=", "==", "!="))
_OPERAND_FIRST = frozenset(("NAME", "INT", "FLOAT", "STRING", "LPAR"))


@dataclass(frozen=True, slots=True)
class _Stop:
    """The place at which the parser stopped, and what it had read of the rule before."""

    found: str
    line: int
    column: int
    before: tuple[Token, ...]
    accepts: frozenset[str]

    @property
    def depth(self) -> int:
        """How many parentheses are open."""
        signs = [str(token) for token in self.before]
        return signs.count("(") - signs.count(")")

    @property
    def previous(self) -> str:
        return str(self.before[-1]) if self.before else ""

    def has(self, word: str) -> bool:
        """Whether the rule has come past a word or sign."""
        return any(token == word for token in self.before)

    @property
    def operand_expected(self) -> bool:
        return bool(self.accepts & _OPERAND_FIRST) and "SEMICOLON" not in self.accepts

    @property
    def atom_expected(self) -> bool:
        """Whether an atom, not a piece of an expression, had to begin here."""
        if self.depth or self.has("if") or self.has("where"):
            return False
        return self.previous in ("", ":=", "^", "not")


def explain_unexpected(grammar: Lark, text: str, file: str, error: UnexpectedInput) -> Diagnostic:
    """The first mistake of a text that the grammar refused."""
    stop = _stop(grammar, text, error)
    code, message, hint, place = _classify(stop, text, error.pos_in_stream or 0)
    line, column = place
    width = max(1, len(stop.found)) if place == (stop.line, stop.column) else 1
    return Diagnostic(code, message, at_point(line, column, width), file, hint)


def _stop(grammar: Lark, text: str, error: UnexpectedInput) -> _Stop:
    found, line, column = "", error.line, error.column
    accepts: frozenset[str] = frozenset()
    position = error.pos_in_stream
    if isinstance(error, UnexpectedCharacters):
        found = text[error.pos_in_stream] if error.pos_in_stream is not None else ""
        accepts = frozenset(error.allowed or ())
    else:
        token: Any = getattr(error, "token", None)
        wanted: Any = getattr(error, "accepts", None) or getattr(error, "expected", None)
        accepts = frozenset(wanted or ())
        if token is not None and token.type != "$END":
            found = str(token)
        else:
            position = len(text)
    before = _tokens_before(grammar, text, position if position is not None else len(text))
    if not found and before:
        line, column = before[-1].end_line or 1, before[-1].end_column or 1
    since = max((i for i, token in enumerate(before) if token == ";"), default=-1)
    return _Stop(found, max(1, line), max(1, column), before[since + 1 :], accepts)


def _tokens_before(grammar: Lark, text: str, position: int) -> tuple[Token, ...]:
    """The tokens that the parser had taken; what cannot be read as tokens ends the list."""
    taken: list[Token] = []
    with suppress(UnexpectedInput):
        taken.extend(grammar.lex(text[:position], dont_ignore=False))
    return tuple(taken)


def _classify(stop: _Stop, text: str, position: int) -> tuple[str, str, str, tuple[int, int]]:
    """(code, message, hint, place). The order of the tests is the order in which signs are telling."""
    here = (stop.line, stop.column)
    found = stop.found
    if found.startswith('"'):
        return "E010", "the text has no closing quote", 'close it with "', here
    if text.startswith(":-", position) and found == ":":
        return "E011", "`:-` is not the sign between head and formula", "write :=", here
    if found == "~" or stop.previous == "~":
        return (
            "E003",
            "`~` stands after an atom, before the name of a lattice",
            "write not p(…)",
            here,
        )
    if found == "(" and len(stop.before) > 1 and stop.before[-2] == "~":
        name = stop.before[-1]
        place = (name.line or 1, name.column or 1)
        return "E003", "`~` takes the name of a lattice, not an atom", f"write not {name}(…)", place
    if stop.previous == "@":
        return "E004", "`@` needs a lattice with its value in parentheses", _at_hint(found), here
    return _classify_structure(stop, here)


def _at_hint(found: str) -> str:
    return f"write @time({found})" if found.isidentifier() else "write @time(t)"


def _classify_structure(
    stop: _Stop, here: tuple[int, int]
) -> tuple[str, str, str, tuple[int, int]]:
    found = stop.found
    shown = f"`{found}`" if found else "the end of the text"
    if found == "if" and stop.has("where"):
        return "E007", "`if` comes before `where`", "write … if GUARD where NAME = …;", here
    if found == "=" and stop.has("if") and not stop.has("where"):
        return "E008", "`=` belongs to definitions", "compare with ==", here
    if found in _COMPARISONS and not stop.operand_expected and _compared(stop):
        return "E014", "comparisons do not chain", "write 1 < y ^ y < 3", here
    if found == ")" and stop.depth <= 0:
        return "E002", "this parenthesis closes nothing", "leave it out", here
    if found in ("", ";", ":=", "if", "where") and stop.depth > 0:
        return "E002", f"a parenthesis is open before {shown}", "close it with )", here
    if found == "," and stop.depth == 0 and stop.has(":=") and not stop.has("where"):
        return "E013", "atoms and guards are joined with `^`", "write ^ instead of ,", here
    if stop.operand_expected:
        if stop.atom_expected:
            hint = "write a name with arguments: p(x)"
            return "E006", f"an atom was expected instead of {shown}", hint, here
        hint = "write a variable, a literal or a function"
        return "E009", f"an expression was expected instead of {shown}", hint, here
    if stop.depth > 0:
        return "E002", f"a parenthesis is open before {shown}", "close it with )", here
    return "E001", f"the rule does not end before {shown}", "end every rule with ;", here


def _compared(stop: _Stop) -> bool:
    """Whether a comparison has just been written at this depth of parentheses."""
    depth = 0
    for token in reversed(stop.before):
        if token == ")":
            depth += 1
        elif token == "(":
            depth -= 1
            if depth < 0:
                return False
        elif depth == 0:
            if str(token) in _COMPARISONS:
                return True
            if str(token) in ("^", "if", "where", "&&", "||", ",", ":=", "="):
                return False
    return False
