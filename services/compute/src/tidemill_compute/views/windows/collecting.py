"""The answer of a window, put together from what its ranges say."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec

from tidemill.arrangement.interval_updates import END_WORD
from tidemill.catalog.schemas import ERROR_SCHEMA
from tidemill.datalog.presence import ErrorMove
from tidemill.shard.ports import Blob
from tidemill_compute.views.interval_rows import FailingTexts, error_moves
from tidemill_compute.views.range_wire import Dealt
from tidemill_compute.views.view_updates import update_table
from tidemill_compute.views.windows.spec import (
    Failure,
    Window,
    WindowResult,
    pack_window,
    unpack_window,
)
from tidemill_compute.views.windows.work import ERRORS, EXCHANGED, FAILED, LOOKED, ROWS, WindowWork

Evaluate = Callable[[bytes, WindowWork], AsyncIterator[Dealt]]
"""Evaluates all ranges of a packed window, and gives what is put together."""


async def answer(
    packed: bytes, blob: Blob, folder: Path | None, evaluate: Evaluate
) -> WindowResult:
    """The answer of a window. Its parts are written, and named by nobody yet.

    A text of an error may hold for other keys than those that are touched. So a window that meets
    an error looks at all keys.
    """
    window = unpack_window(packed)
    gathered = await _gather(packed, blob, folder, evaluate)
    if gathered.failed or window.whole or not gathered.meets_errors:
        return await gathered.result()
    ranges = max(window.ranges, window.ranges_max)
    again = pack_window(msgspec.structs.replace(window, whole=True, ranges=ranges))
    return await (await _gather(again, blob, folder, evaluate)).result()


async def _gather(packed: bytes, blob: Blob, folder: Path | None, evaluate: Evaluate) -> _Gathered:
    work = WindowWork(packed, blob, folder)
    gathered = _Gathered(work)
    async for each in evaluate(packed, work):
        gathered.take(each)
    return gathered


class _Gathered:
    """Rows of the last stage: parts pass, errors of all ranges meet, and numbers are added up."""

    def __init__(self, work: WindowWork) -> None:
        self._work = work
        self._parts: dict[str, list[bytes]] = {}
        self._rows: Counter[str] = Counter()
        self._failing: list[ErrorMove] = []
        self._errors: list[ErrorMove] = []
        self._touched, self._turn, self._exchanged, self._looked = 0, END_WORD, 0, 0
        self.failed: tuple[Failure, str] | None = None

    @property
    def window(self) -> Window:
        """The window that is answered."""
        return self._work.window

    @property
    def meets_errors(self) -> bool:
        """Whether an error holds, or begins or ends, for a key that was looked at."""
        return bool(self._failing or self._errors)

    def take(self, dealt: Dealt) -> None:
        """Take what a range says."""
        if dealt.name == FAILED:
            self.failed = msgspec.msgpack.decode(dealt.payload, type=tuple[Failure, str])
        elif dealt.name == ERRORS:
            told = msgspec.msgpack.decode(
                dealt.payload, type=tuple[list[ErrorMove], list[ErrorMove]]
            )
            self._failing += told[0]
            self._errors += told[1]
        elif dealt.name == EXCHANGED:
            self._exchanged += msgspec.msgpack.decode(dealt.payload, type=int)
        elif dealt.name == LOOKED:
            self._looked += msgspec.msgpack.decode(dealt.payload, type=int)
        elif dealt.name == ROWS:
            self._touched += 1
            rows, turn = msgspec.msgpack.decode(dealt.payload, type=tuple[dict[str, int], int])
            self._rows.update(rows)
            self._turn = min(self._turn, turn)
        else:
            self._parts.setdefault(dealt.name, []).append(dealt.payload)

    async def result(self) -> WindowResult:
        """The answer; errors become parts of their collection."""
        whole = self.window.whole
        if self.failed is not None:
            failure, message = self.failed
            return WindowResult({}, {}, whole, failure=failure, message=message)
        texts = FailingTexts()
        texts.take(self._failing)
        moves = error_moves(texts.take(self._errors), self.window.lower)
        errors = self._work.divided.history.target.errors
        parts = await self._work.write(errors, update_table(moves, ERROR_SCHEMA), "errors")
        # Parts come in the order in which tasks end.
        found = {name: sorted(each) for name, each in self._parts.items()}
        return WindowResult(
            found | ({errors: parts} if parts else {}), dict(self._rows), whole, self._touched,
            self._turn, exchanged=self._exchanged, looked=self._looked,
        )  # fmt: skip
