"""A view kept by windows: the changes of each interval go to a driver, its parts come back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import CancelledError, Future

import msgspec
import pyarrow as pa

from tidemill.arrangement.arrow_bytes import pack_table
from tidemill.arrangement.interval_updates import END_WORD
from tidemill.datalog.limits import LimitPassed
from tidemill.datalog.placement import ranges_for
from tidemill.errors import BeforeSince, Corrupt, Exhausted, Unavailable
from tidemill.shard import Collections
from tidemill.shard.encoding import pack_part, unpack_part
from tidemill.shard.listed import PartList
from tidemill.shard.parts import Part
from tidemill.shard.state import State
from tidemill_compute.views.bulk import HISTORY_BYTES, HISTORY_BYTES_MAX
from tidemill_compute.views.history_spec import pack_history
from tidemill_compute.views.input_state import InputState, cut_step
from tidemill_compute.views.view_updates import Start, Step, StoredUpdates
from tidemill_compute.views.windows.asking import Ask, WindowCounts
from tidemill_compute.views.windows.planning import Dividing, RangeCount, WindowPlan
from tidemill_compute.views.windows.spec import Window, WindowResult, pack_window

_TRIES = 3
"""Looks at the inputs for one window, whose parts may be merged away meanwhile."""
_FEWER = 4


class WindowMaintainer:
    """Maintainer of programs without ticks whose rows are in collections, and nowhere here.

    The first window looks at all keys, later ones at those that changes touch. An interval without
    a change asks nobody. Cost: the changes, and elsewhere the rows of their keys.
    """

    def __init__(
        self, plan: WindowPlan, collections: Collections, ask: Ask,
        now_ms: Callable[[], int], owner: str, counts: WindowCounts,
        bytes_max: int = HISTORY_BYTES_MAX, setting: str = HISTORY_BYTES,
    ) -> None:  # fmt: skip
        """For the event loop that runs now; `bytes_max` is for one range, by a setting.

        `owner` is a new name; `counts` go on from one maintainer of the view to the next.
        """
        self._counts = counts
        self._owner = owner
        history = plan.divided.history
        self._plan, self._target, self._settings = plan, history.target, history.settings
        self._dividing = Dividing(plan)
        self._range_count = RangeCount()
        self._collections = collections
        self._ask = ask
        self._now_ms = now_ms
        self._loop = asyncio.get_running_loop()
        self._waited: Future[WindowResult] | None = None
        self._view = pack_history(history, bytes_max, setting)
        self._setting = setting
        self._inputs: Mapping[str, InputState] = {}
        self._rows: dict[str, int] | None = None
        self._read = 0
        self._turn = END_WORD
        """The instant at which the view changes without a change of an input."""

    reads_present = False
    outdated = False

    @property
    def held(self) -> tuple[int, int]:
        """No bytes; updates of inputs and rows of outputs, of the last window."""
        return 0, self._read + sum((self._rows or {}).values())

    @property
    def _changes_max(self) -> int:
        return min(self._settings.step_changes_max, self._counts.changes_max)

    @property
    def reads_max(self) -> int:
        """Changes of one input that are read before they are taken in."""
        return 2 * self._changes_max

    def begin(self, start: Start, inputs: Mapping[str, InputState]) -> None:
        """Go on from a start that is not fresh."""
        assert not start.fresh, "a view begins in one process"
        self._inputs, self._rows = inputs, None
        self._turn = start.lower if self._plan.live.moves else END_WORD

    def go_on(self, start: Start) -> bool:
        """It has no rows."""
        return False

    def call_off(self) -> None:
        """Abandon the window under way; its objects are deleted by age."""
        waited = self._waited
        if waited is not None:
            waited.cancel()

    def fewer(self) -> bool:
        """Shrink windows after one ran out of memory; whether that is possible."""
        most = self._changes_max
        self._counts.changes_max = max(1, most // _FEWER)
        return most > 1

    def step(self, lower: int, common: int, half_written: int | None) -> Step:
        """The window from `lower` on. Raises: Unavailable, Exhausted, LimitPassed, Corrupt."""
        inputs = list(self._inputs.values())
        upper = half_written or cut_step(inputs, lower, common, self._changes_max)
        changes: dict[str, pa.Table] = {}
        for name, living in self._inputs.items():
            due = living.take_updates(upper)
            if due.num_rows:
                changes[self._target.inputs[name][0]] = due
        if not changes and self._turn >= upper:
            return self._step(upper, {})
        found = self._wait(self._evaluate(lower, upper, changes))
        self._counts.changes_max = 2 * self._changes_max
        self._turn = found.turn if self._plan.live.moves else END_WORD
        self._count(found)
        return self._step(upper, found.parts)

    def _step(self, upper: int, parts: Mapping[str, list[bytes]]) -> Step:
        target = self._target
        outputs = [collection for collection, _ in target.outputs.values()]
        updates = [
            (name, StoredUpdates(tuple(unpack_part(part) for part in parts.get(name, ()))))
            for name in (target.state, *outputs, target.errors)
        ]
        return Step(upper, updates)

    def _wait(self, work: Awaitable[WindowResult]) -> WindowResult:
        """Wait, on a thread of the views, for what the event loop does."""

        async def run() -> WindowResult:
            return await work

        self._waited = asyncio.run_coroutine_threadsafe(run(), self._loop)
        try:
            return self._waited.result()
        except CancelledError as error:
            raise Unavailable(f"a window of {self._target.name} was called off") from error
        finally:
            self._waited = None

    async def _evaluate(
        self, lower: int, upper: int, changes: Mapping[str, pa.Table]
    ) -> WindowResult:
        told = {name: pack_table(table) for name, table in changes.items()}
        count = sum(table.num_rows for table in changes.values())
        for _ in range(_TRIES):
            window = await self._window(lower, upper, told, count)
            result = msgspec.msgpack.decode(await self._ask(pack_window(window)), type=WindowResult)
            if result.failure != "gone":
                break
        self._counts.add(result)
        match result.failure:
            case "exhausted":
                raise Exhausted(result.message, reason="memory", setting=self._setting)
            case "limit":
                raise LimitPassed(result.message, reason="LimitPassed")
            case "corrupt":
                raise Corrupt(result.message)
            case "gone":
                raise Unavailable(f"parts of inputs were merged away meanwhile: {result.message}")
        if not result.whole:
            self._range_count.learn(result.looked, count)
        return result

    async def _window(
        self, lower: int, upper: int, changes: dict[str, bytes], count: int
    ) -> Window:
        whole = bool(self._plan.live.whole) or self._rows is None
        known = {name: await self._parts(name, lower) for name, _ in self._target.inputs.values()}
        heavy, plan = self._dividing.plan_for(known, whole=whole)
        names = plan.collections(whole=whole)
        found = {name: await self._pieces(name, lower) for name in names}
        self._read = rows = sum(piece.rows for pieces in found.values() for piece in pieces)
        packed = {
            n: [pack_part(p) for p in each if isinstance(p, Part)] for n, each in found.items()
        }
        lists = {n: [p.key for p in each if isinstance(p, PartList)] for n, each in found.items()}
        ranges = self._range_count.take(rows, count, whole=whole or bool(heavy) or plan.anew)
        return Window(
            self._owner, self._view, dict(self._plan.rows), ranges,
            lower, upper, whole, self._now_ms(), packed, changes, ranges_max=ranges_for(rows, ranges),
            heavy=tuple((key.predicate, key.column, key.value, key.rows) for key in heavy),
            anew=plan.anew, lists={name: keys for name, keys in lists.items() if keys},
        )  # fmt: skip

    async def _parts(self, collection: str, lower: int) -> list[Part]:
        """The parts of a collection that have updates below the window. Raises: BeforeSince."""
        state = await self._collections.state(collection)
        self._require(state, collection, lower)
        return [part for part in state.parts() if part.before(lower) is not None]

    async def _pieces(self, collection: str, lower: int) -> list[Part | PartList]:
        """The same as a window names them: of a version of many parts these are mostly lists."""
        state = await self._collections.newest(collection)
        self._require(state, collection, lower)
        pieces = [piece for batch in state.batches for piece in batch.pieces]
        return [piece for piece in pieces if piece.meets(0, lower)]

    @staticmethod
    def _require(state: State, collection: str, lower: int) -> None:
        if not state.since.less_equal(lower - 1):
            raise BeforeSince(
                f"{collection} is known from {state.since} on, and a window needs it at "
                f"{lower - 1}",
                collection=collection,
            )

    def _count(self, found: WindowResult) -> None:
        """Add up the rows of each predicate. Raises: LimitPassed."""
        if found.whole or self._rows is None:
            self._rows = dict(found.rows)
        else:
            for name, more in found.rows.items():
                self._rows[name] = self._rows.get(name, 0) + more
        self._plan.divided.require_rows(self._rows)
