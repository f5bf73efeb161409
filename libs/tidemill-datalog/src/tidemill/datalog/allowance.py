"""Memory limit of one view or question, by its own count, and its cancellation."""

from __future__ import annotations

from collections.abc import Callable
from sys import getsizeof

from tidemill.errors import Exhausted, Unavailable

WITHOUT_END = 1 << 62
"""More than any machine has."""

_FOUND_BYTES, _ROW_BYTES, _VALUE_BYTES = 320, 96, 24
"""Bytes of a found fact under its key, of its row, and of each value: measured, rounded up."""
_MATCH_BYTES = 560
"""A match that is kept, in the store and under the keys of its facts."""


def row_bytes(values: int) -> int:
    """Bytes of a fact of so many values as a row."""
    return _ROW_BYTES + _VALUE_BYTES * values


def found_bytes(values: int) -> int:
    """Bytes of a fact while it is derived: with its key, and its row."""
    return _FOUND_BYTES + row_bytes(values)


def match_bytes(values: int) -> int:
    """Bytes of a kept match that binds so many values."""
    return _MATCH_BYTES + _VALUE_BYTES * values


class Allowance:
    """Counts what an evaluation holds, and ends it beyond `bytes_max` or once nobody waits for it.

    Finished results are settled by their size; intermediate results are taken meanwhile. Between
    two looks an evaluation goes on for some milliseconds, and holds at most as much more as one
    table has. One evaluation counts at a time; any thread may call `call_off` and `interrupt`.
    """

    def __init__(
        self, bytes_max: int = WITHOUT_END, setting: str = "", whose: str = "the evaluation"
    ) -> None:
        """`whose` names it in the refusal, `setting` the limit."""
        self._max = bytes_max
        self._setting = setting
        self._whose = whose
        self._called_off = False
        self._interrupted = False
        self._then: Callable[[], None] | None = None
        self.held = 0
        """Bytes of what is held now."""
        self.beside = 0
        """Bytes of what is held for the evaluation by somebody else, as inputs are."""
        self.kept = 0
        """Bytes of the texts that were made, which count until the next evaluation begins."""

    def settle(self, held: int) -> None:
        """From now on this is held. Raises: Exhausted, Unavailable once it is called off."""
        self.held = held
        self.take(0)

    def begin(self, tables: int) -> None:
        """An evaluation begins over these tables and what is beside. Raises: as `take`."""
        self.kept = 0
        self.settle(self.beside + tables)

    def require(self, more: int) -> None:
        """See that there is room for so much. Raises: as `take`."""
        self.take(0)
        if self.held + self.kept + more > self._max:
            self.refuse(self.held + self.kept + more)

    def take(self, more: int) -> None:
        """This is held as well. Raises: Exhausted, Unavailable once it is called off."""
        if self._interrupted:
            self._stop()
        self.held += more
        if self.held + self.kept > self._max:
            self.refuse(self.held + self.kept)

    def keep(self, text: object) -> None:
        """A text was made. Raises: as `take`."""
        self.kept += getsizeof(text)
        self.take(0)

    def refuse(self, wanted: int) -> None:
        """Raises: Exhausted, for whoever has counted more than there is room for."""
        raise Exhausted(
            f"{self._whose} was given up: it holds {wanted:,} bytes or more of rows, matches and "
            f"columns, the limit is {self._max:,} ({self._setting}); join by a column, keep fewer rows, "
            "or raise the limit",
            reason="memory", setting=self._setting,
        )  # fmt: skip

    def apart(self) -> Allowance:
        """The same allowance for another evaluation, which counts by itself."""
        return Allowance(self._max, self._setting, self._whose)

    def call_off(self) -> None:
        """Cancel the evaluation at its next look: nobody waits for it."""
        self._called_off = self._interrupted = True

    def interrupt(self, then: Callable[[], None]) -> None:
        """Call `then` on the thread of the evaluation, at its next look."""
        self._then = then
        self._interrupted = True

    def _stop(self) -> None:
        """Raises: Unavailable once it is called off."""
        self._interrupted = False  # before the look: a thread may call off at any moment
        if self._called_off:
            self._interrupted = True
            raise Unavailable(f"{self._whose} was called off: nobody waits for it any longer")
        then, self._then = self._then, None
        if then is not None:
            then()
