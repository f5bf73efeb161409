"""Programs as they were read and checked: what was done beside the event loop is not done on it
again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from threading import Lock
from typing import NamedTuple, TypeVar

from tidemill.arrangement.looks import let_go
from tidemill.arrangement.machine_code import has_loops
from tidemill.datalog.ast import Program
from tidemill.datalog.check import check
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.diagnostics import ProgramErrors
from tidemill.datalog.inputs import InputSchema, InputSchemas
from tidemill.datalog.parser import parse
from tidemill.datalog.vocabulary import Vocabulary
from tidemill.errors import TidemillError

KEPT = 256
"""So many readings and so many checks are remembered, the latest ones."""
CHARS_KEPT = 250_000
"""So many characters of programs are remembered: some 50 MB, in half a million objects.

Each full collection of garbage walks through all of these objects, and holds the interpreter.
"""

RULES_A_LOOK = 20
"""Rules that are freed between two looks: at once a thousand are some milliseconds."""

T = TypeVar("T")


class Predicates(NamedTuple):
    """Names of predicates in the heads of rules, and in their bodies."""

    derived: frozenset[str]
    read: frozenset[str]


class _Remembered:
    """A cache of results and errors of calls, by their arguments; safe for any number of
    threads.
    """

    def __init__(self) -> None:
        self._found: OrderedDict[tuple[str, Hashable], object] = OrderedDict()
        self._chars = 0
        self._changes = Lock()

    def get(self, text: str, beside: Hashable, make: Callable[[], T]) -> T:
        """The result of `make` for a text and what is given beside it, or its error again.

        It is called once for what is remembered.
        """
        key = text, beside
        found = self._found.get(key)
        if found is None:
            try:
                found = make()
            except TidemillError as error:
                found = error
            self._remember(key, found)
        if isinstance(found, TidemillError):
            raise found.with_traceback(None)
        return found  # type: ignore[return-value]  # what `make` returned

    def _remember(self, key: tuple[str, Hashable], found: object) -> None:
        """Remember one more, and forget the oldest of too many; the last one stays, however long
        it is.
        """
        rules: list[object] = []
        with self._changes:
            if key not in self._found:
                self._chars += len(key[0])
            self._found[key] = found
            while len(self._found) > 1 and (len(self._found) > KEPT or self._chars > CHARS_KEPT):
                (text, _), oldest = self._found.popitem(last=False)
                self._chars -= len(text)
                if isinstance(oldest, Program | CheckedProgram):
                    rules += oldest.rules
                del oldest
        let_go(rules, RULES_A_LOOK)


class Programs:
    """Reads and checks programs of views, each once for the same inputs.

    Cost: seconds for the longest ones.
    """

    def __init__(self) -> None:
        self._read = _Remembered()
        self._checked = _Remembered()
        self._lowered: tuple[CheckedProgram, str | None] | None = None
        self._predicates: tuple[Program, Predicates] | None = None

    def read(self, text: str, file: str) -> Program:
        """The program of a text. Raises: ProgramErrors."""
        return self._read.get(text, file, lambda: parse(text, file))

    def checked(
        self, text: str, file: str, inputs: Mapping[str, InputSchema], words: Vocabulary,
        readable: Callable[[], tuple[str, ...]],
    ) -> CheckedProgram:  # fmt: skip
        """The checked program over these inputs; mistakes propose what is `readable`.

        Raises: ProgramErrors.
        """
        named = tuple(sorted(words.functions)), tuple(sorted(words.lattices))
        sure = file, tuple(sorted(inputs.items())), named
        known = self._checked.get(text, sure, _Untold)
        if known.program is None and not known.refused:
            try:
                known.program = check(self.read(text, file), InputSchemas(inputs), words)
            except ProgramErrors:
                known.refused = True
        if known.program is None:  # what was refused may be proposed something else by now
            names = readable()
            schemas = InputSchemas(inputs, readable=names)
            known.program = self._checked.get(
                text, (*sure, names), lambda: check(self.read(text, file), schemas, words)
            )
        return known.program

    def predicates(self, program: Program) -> Predicates:
        """The names that a program derives and reads. Cost: O(rules), but for the last program."""
        known = self._predicates
        if known is None or known[0] is not program:
            derived = frozenset(rule.head.application.name for rule in program.rules)
            atoms = (atom for rule in program.rules for atom in rule.atoms)
            read = frozenset(atom.application.name for atom in atoms)
            known = self._predicates = program, Predicates(derived, read)
        return known[1]

    def missing(self, program: CheckedProgram) -> str | None:
        """The construct of a program that the dataflow lacks, None if it can be kept.

        A process that cannot compile runs no view: what it reads in the catalog was judged where it
        was applied. Cost: the program is lowered, but for the one that was asked about last.
        """
        known = self._lowered
        if known is None or known[0] is not program:
            known = self._lowered = program, _missing_in(program)
        return known[1]


def _missing_in(program: CheckedProgram) -> str | None:
    if not has_loops():
        return None
    from tidemill.datalog.dataflow import missing_in  # loads loops

    return missing_in(program)


class _Untold:
    """The place of a program that is right, which depends on no other names; or that it is not."""

    def __init__(self) -> None:
        self.program: CheckedProgram | None = None
        self.refused = False
