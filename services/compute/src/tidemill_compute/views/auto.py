"""The rule of `engine: auto`: by memory and by lag, with the reason in words."""

from __future__ import annotations

from typing import Literal, NamedTuple

Engine = Literal["local", "spark"]

FULL, HALF = 0.8, 0.5
"""Parts of its memory above which a view leaves one process, and below which it comes back."""
GROWING_STEPS = 10
"""Steps in a row over which the lag of a busy process has grown, at least."""
GROWING_S = 300.0
"""Seconds over which it has, at least: a backlog that is being loaded makes lag for a while."""
BACK_S = 3_600.0
"""Seconds below half of the memory before a view comes back to one process."""
ROW_BYTES = 800
"""Bytes of a row in one process, where none is known."""
UPDATE_BYTES = 64
"""Bytes of an update of an input in one process, at least: most may be of rows that are gone."""
BUSY = 0.5
"""Part of its time that a busy process spends in steps."""


class Why(NamedTuple):
    """The cause of an engine: one word in CamelCase, and a sentence."""

    cause: str
    said: str


FITS = Why("Fits", "the rows fit into one process")


class AutoRule:
    """Which engine a view should have. Pure; cost of a note: O(1)."""

    def __init__(self, bytes_max: int) -> None:
        """`bytes_max` is the memory that one process may use for the view."""
        self._bytes_max = bytes_max
        self.wanted: Engine = "local"
        self.why = FITS
        self._row_bytes = ROW_BYTES
        self._kept = 0
        self._behind, self._steps = 0, 0
        self._busy_s = self._since_s = 0.0
        self._below_s: float | None = None

    def estimate(self, rows: int) -> None:
        """Before a start: so many updates of inputs would be read into one process."""
        self._full(rows * UPDATE_BYTES, f"{rows:,} updates of inputs")

    def kept_here(self, held: int) -> None:
        """One process keeps so many bytes for the view, between two steps."""
        self._kept = held

    def exhausted(self, message: str, *, begins: bool) -> None:
        """One process had no room to begin with the rows it keeps, or for its smallest step.

        Matches of one step that have no room beside few rows have none in a range, either.
        """
        if begins or self._kept >= HALF * self._bytes_max:
            self._go("spark", "Memory", f"one process has no room: {message}")

    def step_here(self, now_s: float, took_s: float, behind: int, held: int, rows: int) -> None:
        """A step of one process took so long, and left changes behind; the view holds memory.

        A lag for which windows would be of no help is forgotten when it has gone.
        """
        self.kept_here(held)
        if not behind and self.why.cause == "Lag":
            self.wanted, self.why = "local", FITS
        if rows:
            self._row_bytes = max(1, held // rows)
        self._full(held, f"{rows:,} rows")
        if behind <= self._behind:
            self._steps, self._busy_s, self._since_s = 0, 0.0, now_s
        else:
            self._steps, self._busy_s = self._steps + 1, self._busy_s + took_s
        self._behind, grown_s = behind, now_s - self._since_s
        long = self._steps >= GROWING_STEPS and grown_s >= GROWING_S
        if long and self._busy_s >= BUSY * grown_s:
            said = f"the lag has grown over {self._steps} steps, to {behind:,} changes"
            self._go("spark", "Lag", f"{said}, while one process was busy")

    def window_there(self, now_s: float, rows: int) -> None:
        """A window was evaluated; the view has about so many rows."""
        held = rows * self._row_bytes
        if held >= HALF * self._bytes_max:
            self._below_s = None
        elif self._below_s is None:
            self._below_s = now_s
        elif now_s - self._below_s >= BACK_S:
            said = f"about {held:,} bytes of rows, below half of what one process may use"
            self._go("local", "Shrunk", said)

    def _full(self, held: int, of: str) -> None:
        if held > FULL * self._bytes_max:
            limit = f"{FULL:.0%} of limits.view_bytes ({self._bytes_max:,})"
            self._go("spark", "Memory", f"about {held:,} bytes of {of}, above {limit}")

    def _go(self, engine: Engine, cause: str, said: str) -> None:
        stronger = cause == "Memory" and self.why.cause == "Lag"
        if self.wanted != engine or stronger:
            self.wanted, self.why = engine, Why(cause, said)
            self._steps, self._below_s = 0, None
