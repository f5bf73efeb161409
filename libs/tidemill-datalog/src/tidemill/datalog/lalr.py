"""The tables that lark makes of a grammar, run over a text without an object for each token.

An expression that stands alone passes through a rule for each level of precedence. All of these
reductions are one look-up here. The pieces of a repetition are one list, which grows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from lark import Lark
from lark.grammar import Rule
from lark.lexer import PatternStr

from tidemill.arrangement.looks import look
from tidemill.datalog.ast import Span

Token: TypeAlias = "tuple[str, Span]"
"""Characters of a token and their place; no token goes on in the next line."""
END = "$END"
_NAME, _NONE = "NAME", "NONE"
_TOKENS_A_LOOK = 100
"""Tokens that are read between two looks: less than a millisecond."""


class Refused(Exception):
    """A place of a text at which no rule of the grammar goes on."""

    def __init__(self, line: int, column: int, position: int) -> None:
        super().__init__(f"line {line}, column {column}")
        self.line = line
        self.column = column
        self.position = position


_Make: TypeAlias = "Callable[[list[Any]], Any]"


class _Reduction:
    """A rule whose pieces are complete."""

    def __init__(self, rule: Rule, make: _Make) -> None:
        self.size = len(rule.expansion)
        self.origin: str = rule.origin.name
        only = rule.expansion[0] if self.size == 1 else None
        hands_on = rule.options.expand1 and not rule.alias
        self.hands_on = hands_on and only is not None and not only.is_term
        """Whether its only piece is what it makes."""
        taken = getattr(make, "to_include", None)
        of = make if taken is None else make.node_builder  # type: ignore[attr-defined]
        if self.origin.startswith("_"):  # as lark writes `x*`
            of = _as_it_is
        self.make = of
        if taken is not None:
            self.make = _of_some(
                [(*each, 0)[:3] for each in taken], getattr(make, "append_none", 0), of
            )


def _as_it_is(pieces: list[Any]) -> list[Any]:
    return pieces


def _of_some(taken: Sequence[tuple[int, bool, int]], absent: int, make: _Make) -> _Make:
    """Makes something of some pieces: each has a place, and absent ones before it.

    A piece that is a repetition is a list; the first one grows.
    """

    def made(pieces: list[Any]) -> Any:
        found: list[Any] = []
        for at, repeats, before in taken:
            if before:
                found += [None] * before
            if not repeats:
                found.append(pieces[at])
            elif found:
                found += pieces[at]
            else:
                found = pieces[at]
        if absent:
            found += [None] * absent
        return make(found)

    return made


class TableParser:
    """Parses as its grammar does. For use by several threads at once. Cost: O(length)."""

    def __init__(self, grammar: Lark) -> None:
        conf = grammar.parse_interactive("").parser_state.parse_conf
        self._start, self._end = conf.start_state, conf.end_state
        made = {rule: _Reduction(rule, make) for rule, make in conf.callbacks.items()}
        self._steps: dict[int, dict[str, int | _Reduction]] = {
            state: {kind: made.get(step, step) for kind, (_, step) in steps.items()}
            for state, steps in conf.states.items()
        }
        self._after: list[dict[str, dict[str, int]]] = [{} for _ in range(1 + max(self._steps))]
        """After a reduction in a state: by what is made, and the token to come."""
        terminals = sorted(
            grammar.terminals,
            key=lambda t: (-t.priority, -t.pattern.max_width, -len(t.pattern.value), t.name),
        )
        name = re.compile(next(t.pattern.to_regexp() for t in terminals if t.name == _NAME))
        words = [t for t in terminals if isinstance(t.pattern, PatternStr)]
        self._words: dict[str, str] = {
            t.pattern.value: t.name for t in words if name.fullmatch(t.pattern.value)
        }
        kept = [t for t in terminals if t.name not in self._words.values()]
        every = [f"(?P<{t.name}>{t.pattern.to_regexp()})" for t in kept]
        self._pattern = re.compile("|".join((*every, rf"(?P<{_NONE}>[\s\S])")))
        self._ignored = frozenset(grammar.ignore_tokens)

    def tokens(self, text: str) -> Iterator[tuple[str, Token]]:
        """The tokens of a text with their kinds, then one for its end. Raises: Refused."""
        line, before = 1, -1
        last, made, words, ignored = Span(1, 1, 1, 1), tuple.__new__, self._words, self._ignored
        for number, match in enumerate(self._pattern.finditer(text)):
            kind, found = match.lastgroup, match.group()
            assert kind is not None
            if kind not in ignored:
                at = match.start()
                if kind == _NAME:
                    kind = words.get(found, kind)
                elif kind == _NONE:
                    raise Refused(line, at - before, at)
                last = made(Span, (line, at - before, line, match.end() - before))
                yield kind, (found, last)
            elif "\n" in found:
                line += found.count("\n")
                before = text.rindex("\n", 0, match.end())
            if number % _TOKENS_A_LOOK == 0:
                look()
        yield END, ("", Span(*last[2:], *last[2:]))

    def parse(self, text: str) -> Any:
        """The product of a text, as the construction makes it, which is handed lists of pieces.

        Raises: Refused at the first place that does not fit, and what the construction raises.
        """
        steps, after, state = self._steps, self._after, self._start
        states, values = [state], list[Any]()
        for kind, token in self.tokens(text):
            while True:
                step = steps[state].get(kind)
                if type(step) is int:
                    states.append(step)
                    values.append(token)
                    state = step
                    break
                if step is None:
                    raise Refused(*token[1][:2], 0)
                assert isinstance(step, _Reduction)
                size = step.size
                if size == 1:  # the most of all
                    states.pop()
                    values.append(step.make([values.pop()]))
                elif size:
                    pieces = values[-size:]
                    del values[-size:], states[-size:]
                    values.append(step.make(pieces))
                else:
                    values.append(step.make([]))
                follows = after[states[-1]].setdefault(step.origin, {})
                state = follows.get(kind, -1)
                if state < 0:
                    state = follows[kind] = self._reduced(states[-1], step.origin, kind)
                if kind == END and state == self._end:
                    return values[-1]
                states.append(state)
        raise AssertionError("the end of a text is shifted by no rule")

    def _reduced(self, state: int, origin: str, kind: str) -> int:
        """The state after a reduction, and after all that only hand its product on."""
        while True:
            found = self._steps[state][origin]
            assert isinstance(found, int)
            following = self._steps[found].get(kind)
            if not isinstance(following, _Reduction) or not following.hands_on:
                return found
            origin = following.origin
