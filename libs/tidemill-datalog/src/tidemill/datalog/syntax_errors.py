"""Syntax errors: codes E001 … E014, their places, and corrections.

The parser's tables say that a token is wrong, not why. So the tokens are read once more, from left
to right, by functions that follow the grammar and know the usual mistakes at each place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from tidemill.datalog.ast import Span
from tidemill.datalog.diagnostics import Diagnostic
from tidemill.datalog.habits import habit
from tidemill.datalog.lalr import END as _END
from tidemill.datalog.lalr import Refused, TableParser
from tidemill.datalog.lattices import LATTICES

_UNREADABLE = "$UNREADABLE"
_OPERATORS = frozenset(("COMPARE", "PLUS", "MINUS", "TIMES", "AND", "OR"))
_LITERALS = frozenset(("INT", "FLOAT", "SPAN", "STRING", "TRUE", "FALSE", "NULL", "WILDCARD"))
_OPEN_MAX = 200
_RESERVED = frozenset(("IF", "WHERE", "NOT", "TRUE", "FALSE", "NULL", "NEXT", "ASYNC"))


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    span: Span

    @property
    def shown(self) -> str:
        """The name of the token in a message."""
        return "the end of the text" if self.kind == _END else f"`{self.text}`"

    def touches(self, following: _Token) -> bool:
        """Whether nothing stands between this token and the next."""
        return (self.span.end_line, self.span.end_column) == (
            following.span.line,
            following.span.column,
        )


class Mistake(Exception):
    """A place of a text that the grammar or the language refuses."""

    def __init__(self, code: str, message: str, span: Span, hint: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.span = span
        self.hint = hint


def explain_syntax(
    grammar: TableParser, text: str, file: str, error: Refused
) -> tuple[Diagnostic, ...]:
    """The mistakes of a text that the grammar refused, in the order of the text; at least one.

    After a mistake, reading goes on behind the next `;`, so that later rules are looked at as well.
    """
    reader = _Reader(_tokens(grammar, text))
    found: list[Diagnostic] = []
    while not reader.at(_END):
        try:
            reader.rule()
        except Mistake as mistake:
            found.append(
                Diagnostic(mistake.code, mistake.message, mistake.span, file, mistake.hint)
            )
            if not reader.skip_rule(mistake):
                break
    if not found:
        place = Span(error.line, error.column, error.line, error.column + 1)
        found.append(Diagnostic("E001", "this text is no rule", place, file))
    return tuple(found)


def _tokens(grammar: TableParser, text: str) -> list[_Token]:
    """All tokens, then one for the end, or one for the first place that is no token."""
    found: list[_Token] = []
    try:
        for kind, (written, span) in grammar.tokens(text):
            read = _Token(kind, written, span)
            if written == "*" and found and found[-1].text == "/" and found[-1].touches(read):
                return [*found[:-1], _Token(_UNREADABLE, "/*", found[-1].span)]
            found.append(read)
    except Refused as error:
        span = Span(error.line, error.column, error.line, error.column + 1)
        found.append(_Token(_UNREADABLE, text[error.position], span))
    return found


_EXPONENT_HINT = "a number with an exponent has a point: 1.0e5"


class _Reader:
    """Reads tokens as the grammar does and raises Mistake at the first that does not fit."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._position = 0
        self._open = 0
        self._in_guard = False

    @property
    def _token(self) -> _Token:
        return self._tokens[min(self._position, len(self._tokens) - 1)]

    @property
    def _before(self) -> _Token:
        return self._tokens[max(0, self._position - 1)]

    @property
    def _next(self) -> _Token:
        return self._tokens[min(self._position + 1, len(self._tokens) - 1)]

    def at(self, *kinds: str) -> bool:
        """Whether the next token is of one of these kinds."""
        return self._token.kind in kinds

    def _take(self) -> _Token:
        token = self._token
        self._position += 1
        return token

    def _took(self, kind: str) -> bool:
        if self.at(kind):
            self._position += 1
            return True
        return False

    def skip_rule(self, mistake: Mistake) -> bool:
        """Go to where the next rule likely begins; False if nothing readable follows."""
        self._open = 0
        forgotten_end = (
            mistake.code == "E001" and self.at("NAME") and self._next.kind in ("LPAR", "ASSIGN")
        )
        while not forgotten_end and not self.at(_END, _UNREADABLE):
            if self._take().kind == "SEMICOLON":
                break
        return not self.at(_END, _UNREADABLE)

    # Errors at a place.

    def _fail(self, code: str, message: str, hint: str, at: _Token | None = None) -> NoReturn:
        """Refuse a place; what is a habit from another language has that language's hint."""
        before, token, following = self._before, self._token, self._next
        joined = self._position > 0 and before.touches(token)
        began = not self._position or before.kind == "SEMICOLON"
        doubled = token.text + following.text if token.touches(following) else ""
        number = before.text if joined and before.kind in ("INT", "FLOAT") else ""
        known = habit(token.text, doubled, number, begins=began)
        raise Mistake(code, message, (at or token).span, known or hint)

    def _refuse_stray(self, *, operand: bool = False) -> None:
        """Raise for what is wrong wherever it stands, whatever was expected instead."""
        token = self._token
        if token.kind == _UNREADABLE and token.text == '"':
            self._fail("E010", "the text has no closing quote", 'close it with "')
        if token.kind == _UNREADABLE and token.text == "/*":
            self._fail("E010", "the comment has no end", "close it with */")
        if token.text == ":" and self._next.kind == "MINUS" and token.touches(self._next):
            self._fail("E011", "`:-` is not the sign between head and formula", "write :=")
        if token.text == "~":
            self._fail("E003", "`~` stands after an atom, before a lattice", _not_hint(self._next))
        if token.kind == "RPAR" and self._open == 0:
            self._fail("E002", "this parenthesis closes nothing", "leave it out")
        if operand and token.kind == _END and self._open:
            self._fail("E002", "a parenthesis is open at the end of the text", "close it with )")

    def _expression_expected(self) -> NoReturn:
        self._refuse_stray(operand=True)
        token = self._token
        hint = "write a variable, a literal or a function"
        if token.kind == "NOT":
            hint = "`not p(…)` stands before `if`; compare with == false"
        elif token.kind in _RESERVED:
            hint = f"`{token.text}` is a word of the language, take another name"
        elif token.text == "!":
            hint = "compare with == false"
        elif token.text == "=":
            hint = "compare with =="
        elif token.text == "'":
            hint = 'write text between double quotes: "a"'
        elif token.text == ">" and self._before.text == "<":
            hint = "write !="
        elif token.text == "*" and self._before.kind == "LPAR":
            hint = "write @count(1), which counts all solutions"
        self._fail("E009", f"an expression was expected instead of {token.shown}", hint)

    def _enter(self) -> None:
        """A parenthesis opens."""
        if self._open == _OPEN_MAX:
            self._fail("E009", "parentheses nest too deep", "split this over several rules")
        self._take()
        self._open += 1

    def _close(self) -> None:
        """The `)` of the parenthesis that was opened last."""
        if self._took("RPAR"):
            self._open -= 1
            return
        self._refuse_stray()
        token = self._token
        if token.text == "=" and self._in_guard:
            self._refuse_equals()
        hint = "close it with )"
        if self._exponent_alone():
            hint = _EXPONENT_HINT
        elif token.kind in ("NAME", *_LITERALS):
            hint = "close it with ), or separate arguments with ,"
        elif token.text == "=":
            hint = "close it with ), or compare with =="
        elif token.text == "^":
            hint = "close it with ); ^ joins atoms and guards only, inside a guard write &&"
        self._fail("E002", f"a parenthesis is open before {token.shown}", hint)

    def _exponent_alone(self) -> bool:
        """Whether a name stands here that was meant as the exponent of the number before it."""
        token, before = self._token, self._before
        named = token.kind == "NAME" and token.text[0] in "eE" and token.text[1:].isdigit()
        return named and before.kind in ("INT", "FLOAT") and before.touches(token)

    def _refuse_equals(self) -> NoReturn:
        after = self._next.text
        hint = f"write {after}=" if after in ("<", ">") else "compare with =="
        self._fail("E008", "`=` belongs to definitions", hint)

    # The parts of a rule.

    def rule(self) -> None:
        """One rule up to its `;`."""
        self._in_guard = False
        if self.at("NOT"):
            self._fail("E006", "a head is never negated", "write what the rule derives")
        self._pattern("E006")
        self._marks(head=True)
        formula = self.at("ASSIGN")
        if self._took("ASSIGN"):
            self._formula()
        if self._took("WHERE"):
            self._definitions()
        if not self._took("SEMICOLON"):
            self._end_expected(formula)

    def _end_expected(self, formula: bool) -> NoReturn:
        self._refuse_stray()
        token = self._token
        hint = "end every rule with ;"
        if formula and token.text == ",":
            self._fail("E013", "atoms and guards are joined with `^`", "write ^ instead of ,")
        if token.text == ",":
            hint = "a rule has one head; write one rule for each"
        elif token.text in ("=", ":", "?", "<") and not formula:
            hint = "write := between head and formula"
        elif token.kind == "IF":
            hint = "join guards with ^" if formula else "write := and an atom before `if`"
        elif token.text == "|":
            hint = "write || within a guard; for other atoms write another rule"
        elif token.kind == "NOT" or token.text == "&":
            hint = "join atoms with ^"
        elif self._exponent_alone():
            hint = _EXPONENT_HINT
        elif token.text.lower() == "and":
            hint = "write ^ between atoms and between guards, && within a guard"
        elif token.text.lower() == "or":
            hint = "write || within a guard; for other atoms write another rule"
        elif token.kind == "NAME":
            hint = "end every rule with ;, join atoms with ^"
        self._fail("E001", f"the rule does not end before {token.shown}", hint)

    def _pattern(self, code: str) -> None:
        """A name with arguments, in any number of parentheses; `code` for anything else."""
        start = self._token
        if self.at("LPAR"):
            self._enter()
            self._pattern(code)
            self._close()
        elif self.at("NAME") and self._next.kind == "LPAR":
            self._application()
        else:
            self._refuse_operand(code)
        if self.at(*_OPERATORS):
            self._refuse_infix(code, start)

    def _refuse_operand(self, code: str) -> NoReturn:
        """Something else than an application where one had to be."""
        start = self._token
        self._refuse_stray(operand=True)
        if self._infix_begins():
            self._refuse_infix(code, start)
        if code == "E004":
            hint = f"write @time({start.text})" if self.at("NAME", "INT") else "write @time(t)"
            if self.at("NEXT", "ASYNC"):
                hint = f"@{start.text} stands after the head"
            elif start.text in LATTICES:
                hint = f"write @{start.text}(…)"
            self._fail(code, "`@` needs a lattice with its value in parentheses", hint)
        hint = "write a name with arguments: p(x)"
        if self.at("NAME") and self._next.kind == "EQUAL":
            hint = f"give a value a name after `where`: … where {start.text} = …; compare after `if`, with =="
        elif self.at("NAME"):
            hint = f"write {start.text}(…)"
        elif start.text == "!":
            hint = "write not p(x)"
        elif self.at("SEMICOLON") and self._before.kind == "SEMICOLON":
            hint = "leave it out"
        elif self.at("NOT"):
            hint = "write `not` once, directly before the name: not p(x)"
        elif self.at("IF") and self._before.kind == "CIRCUMFLEX":
            hint = "`if` follows the atoms without ^: p(x) := q(x) if x > 5;"
        elif self.at("IF"):
            hint = "write an atom before `if`"
        elif start.kind in _RESERVED:
            hint = f"`{start.text}` is a word of the language, take another name"
        self._fail(code, f"an atom p(…) was expected instead of {start.shown}", hint)

    def _infix_begins(self) -> bool:
        """Whether an operand without parentheses, and then an operator, stand here."""
        place = self._position
        while self._tokens[place].kind == "MINUS":
            place += 1
        operand, *following = self._tokens[place : place + 2]
        simple = operand.kind == "NAME" or operand.kind in _LITERALS
        return simple and bool(following) and following[0].kind in _OPERATORS

    def _refuse_infix(self, code: str, start: _Token) -> NoReturn:
        if code == "E004":
            self._fail(
                "E012", "an infix application is no parafact",
                "match the value with a variable and compare it in the guard: @time(t) … if t > …",
                start,
            )  # fmt: skip
        hint = "put the condition into the guard, after `if`"
        if self.at("AND"):
            hint = "write ^ between atoms; && stands within a guard, after `if`"
        elif self.at("OR"):
            hint = "write another rule with the same head; || stands within a guard, after `if`"
        self._fail("E012", "an infix application is no atom", hint, start)

    def _marks(self, *, head: bool) -> None:
        """Parafacts and suppressions behind an atom or a head."""
        moved = False
        while True:
            if self._took("AT"):
                if head and self.at("NEXT", "ASYNC"):
                    if moved:
                        self._fail("E004", "a head moves once", "write one of @next and @async")
                    moved = True
                    self._move()
                else:
                    self._pattern("E004")
            elif self._took("TILDE"):
                self._suppressed(head=head)
            else:
                return

    def _move(self) -> None:
        word = self._take()
        if word.kind == "NEXT":
            return
        if not self.at("LPAR"):
            self._fail("E004", "`@async` needs the node to send to", "write @async(n)", word)
        self._enter()
        self._expression()
        self._close()

    def _suppressed(self, *, head: bool) -> None:
        if not self.at("NAME"):
            message = "`~` takes the name of a lattice"
            self._fail("E003", message, "write ~time, or another lattice that is not passed on")
        name = self._token
        if self._next.kind == "LPAR":
            hint = f"write ~{name.text}" if head else f"write ^ not {name.text}(…)"
            self._fail("E003", "`~` takes the name of a lattice, not an atom", hint)
        self._take()

    def _formula(self) -> None:
        while True:
            self._took("NOT")
            self._pattern("E006")
            self._marks(head=False)
            if not self._took("CIRCUMFLEX"):
                break
        if self._took("IF"):
            self._in_guard = True
            self._expression()
            while self._took("CIRCUMFLEX"):
                self._expression()
            if self.at("EQUAL"):
                self._refuse_equals()
            self._in_guard = False

    def _definitions(self) -> None:
        while True:
            if self.at("IF"):
                self._if_after_where()
            if not self.at("NAME"):
                self._expression_expected()
            name = self._take()
            if not self._took("EQUAL"):
                self._refuse_stray()
                hint = f"write {name.text} = EXPRESSION"
                if self.at(*_OPERATORS):
                    hint += "; a condition stands after `if`: p(x) := q(x) if x > 5;"
                self._fail("E009", f"a definition was expected, not {self._token.shown}", hint)
            self._expression()
            if not self._took("COMMA"):
                break
        if self.at("IF"):
            self._if_after_where()

    def _if_after_where(self) -> NoReturn:
        self._fail("E007", "`if` comes before `where`", "write … if GUARD where NAME = …;")

    # Expressions.

    def _application(self) -> None:
        """A name with arguments by position or by column name."""
        self._take()
        self._enter()
        if not self.at("RPAR"):
            self._argument()
            while self._took("COMMA"):
                self._argument()
        self._close()

    def _argument(self) -> None:
        if self.at("NAME") and self._next.kind == "COLON":
            self._take()
            self._take()
        self._expression()

    def _expression(self) -> None:
        """Operands and operators; of their ranks only this matters: comparisons do not chain."""
        self._operand()
        compared = False
        while self.at(*_OPERATORS):
            if self.at("COMPARE"):
                if compared:
                    self._fail("E014", "comparisons do not chain", "write 1 < y ^ y < 3")
                compared = True
            elif self.at("AND", "OR"):
                compared = False
            self._take()
            self._operand()

    def _operand(self) -> None:
        while self._took("MINUS"):
            pass
        if self.at("LPAR"):
            self._enter()
            self._expression()
            self._close()
        elif self.at("NAME") and self._next.kind == "LPAR":
            self._call()
        elif self.at("NAME", *_LITERALS):
            self._take()
        else:
            self._expression_expected()

    def _call(self) -> None:
        name = self._take()
        self._enter()
        if not self.at("RPAR"):
            while True:
                if self.at("NAME") and self._next.kind == "COLON":
                    self._fail(
                        "E009", "a function takes its arguments by position",
                        f"write {name.text}(…) without column names",
                    )  # fmt: skip
                self._expression()
                if not self._took("COMMA"):
                    break
        self._close()


def _not_hint(following: _Token) -> str:
    return f"write not {following.text}(…)" if following.kind == "NAME" else "write not p(…)"
