"""The tables that lark makes of a grammar, run over a text without an object for each token.

An expression that stands alone passes through a rule for each level of precedence. All of these
reductions are one look-up here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, TypeAlias

from lark import Lark
from lark.grammar import Rule
from lark.lexer import PatternStr

from tidemill.arrangement.looks import look

Token: TypeAlias = "tuple[str, int, int]"
"""Characters of a token, its line and its column; no token goes on in the next line."""
END = "$END"
_NAME = "NAME"
_TOKENS_A_LOOK = 100
"""Tokens that are read between two looks: less than a millisecond."""


class Refused(Exception):
    """A place of a text at which no rule of the grammar goes on."""

    def __init__(self, line: int, column: int, position: int) -> None:
        super().__init__(f"line {line}, column {column}")
        self.line = line
        self.column = column
        self.position = position


class _Reduction:
    """A rule whose pieces are complete."""

    def __init__(self, rule: Rule, make: Callable[[list[Any]], Any]) -> None:
        self.size = len(rule.expansion)
        self.origin: str = rule.origin.name
        self.make = make
        only = rule.expansion[0] if self.size == 1 else None
        hands_on = rule.options.expand1 and not rule.alias
        self.hands_on = hands_on and only is not None and not only.is_term
        """Whether its only piece is what it makes."""


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
        self._after: dict[tuple[int, str, str], int] = {}
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
        self._pattern = re.compile("|".join(f"(?P<{t.name}>{t.pattern.to_regexp()})" for t in kept))
        self._ignored = frozenset(grammar.ignore_tokens)

    def tokens(self, text: str) -> Iterator[tuple[str, Token]]:
        """The tokens of a text with their kinds, then one for its end. Raises: Refused."""
        line, begun, at = 1, 0, 0
        last = (1, 1)
        for number in count():
            # NB: a search would look for a token behind a place that is none, up to the end.
            match = self._pattern.match(text, at)
            if match is None:
                break
            kind, found, end = str(match.lastgroup), match.group(), match.end()
            if kind not in self._ignored:
                if kind == _NAME:
                    kind = self._words.get(found, kind)
                yield kind, (found, line, at - begun + 1)
                last = line, end - begun + 1
            elif "\n" in found:
                line += found.count("\n")
                begun = at + found.rindex("\n") + 1
            at = end
            if number % _TOKENS_A_LOOK == 0:
                look()
        if at != len(text):
            raise Refused(line, at - begun + 1, at)
        yield END, ("", *last)

    def parse(self, text: str) -> Any:
        """The product of a text, as the construction makes it, which is handed lists of pieces.

        Raises: Refused at the first place that does not fit, and what the construction raises.
        """
        steps, after = self._steps, self._after
        states, values = [self._start], list[Any]()
        for kind, token in self.tokens(text):
            while True:
                step = steps[states[-1]].get(kind)
                if type(step) is int:
                    states.append(step)
                    values.append(token)
                    break
                if step is None:
                    raise Refused(token[1], token[2], 0)
                assert isinstance(step, _Reduction)
                size, pieces = step.size, list[Any]()
                if size:
                    pieces = values[-size:]
                    del values[-size:], states[-size:]
                values.append(step.make(pieces))
                key = states[-1], step.origin, kind
                state = after.get(key)
                if state is None:
                    state = after[key] = self._reduced(*key)
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
