"""Rounds of a recursion over the ranges of a window, which hand objects to one another.

A round is one task for each group of ranges. A task takes in the derivations of the last round for
its ranges. For each group of the next round it puts its own derivations into an object. An engine
waits in its process for the next round. A task that does not find it makes it anew, from
the objects of all rounds so far. A live window evaluates a recursion anew, from the rows just
before it and from its changes. It tells what the recursion says from there on.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from hashlib import blake2b
from typing import TypeAlias

import msgspec

from tidemill.arrangement.interval_updates import END_WORD
from tidemill.datalog.dataflow import DataflowEngine, OutputChanges
from tidemill.datalog.limits import LimitPassed
from tidemill.datalog.placement import Fragment
from tidemill.errors import Corrupt, Exhausted
from tidemill.shard.part_store import PartGone, part_key
from tidemill.shard.ports import Blob
from tidemill_compute.views.range_history import RangeFound
from tidemill_compute.views.range_wire import LAST, Dealt
from tidemill_compute.views.windows.spec import Failure
from tidemill_compute.views.windows.work import (
    EXCHANGED,
    FAILED,
    FAILURES,
    WindowWork,
    by_range,
)

FEW_BYTES = 1 << 18
"""Bytes of a round that one task derives in less time than a job begins."""
ALONE_BYTES_MAX = 1 << 26
"""Bytes that all ranges of such a task have taken in, at most."""
KEPT_BYTES_MAX = 2 << 30
"""Bytes of engines that one process keeps for the next round."""


class Sent(msgspec.Struct, frozen=True):
    """An object with rows for the ranges of one group, of so many bytes."""

    group: int
    key: str
    size: int


class RoundTold(msgspec.Struct, frozen=True):
    """The answer of one task of a round for a `group`; with a `failure` there is none.

    After the last round it has `rows` of the last stage, and has sent those for later fragments.
    """

    sent: list[Sent]
    failure: Failure = ""
    message: str = ""
    group: int = 0
    rows: list[Dealt] = []


Sources: TypeAlias = "Sequence[Sequence[Sent]]"
"""Objects that were sent before the first round, in the first one, and so on."""


class Iterated(msgspec.Struct, frozen=True):
    """Objects that rounds have sent so far, whether there are no more to come, or a failure."""

    sources: list[list[Sent]]
    done: bool
    failed: RoundTold | None = None


async def iterate(
    work: WindowWork, begun: Iterable[RoundTold],
    evaluate: Callable[[Sources], Awaitable[Sequence[RoundTold]]],
    *, before: Sources = (), until: Callable[[Sources], bool] = lambda sources: False,
) -> Iterated:  # fmt: skip
    """Evaluate rounds until none sends anything, one fails, or `until` says so of what was sent.

    `begun` is the answer to what was sent `before`. `evaluate` has all groups take a round.
    """
    limits = work.divided.history.target.limits
    found, sources = list(begun), [list(each) for each in before]
    try:
        while True:
            failed = next((each for each in found if each.failure), None)
            sent = [one for each in found for one in each.sent]
            if failed is not None:  # what others have sent is to be deleted, too
                return Iterated([*sources, sent], True, failed)
            if sources and not sent:
                return Iterated(sources, True)
            sources.append(sent)
            limits.require_rounds(len(sources) - 1)
            if until(sources):
                return Iterated(sources, False)
            found = list(await evaluate(sources))
    except LimitPassed as error:
        return Iterated(sources, True, RoundTold([], "limit", str(error)))


async def ask_all(
    groups: int, ask: Callable[[Sequence[int]], Awaitable[Iterable[RoundTold]]]
) -> list[RoundTold]:
    """The answers of all groups, where a task for one may have chosen another one of them.

    `ask` begins a task for each of some groups. At least one of these is taken each time.
    """
    found: dict[int, RoundTold] = {}
    while wanted := [group for group in range(groups) if group not in found]:
        found.update((each.group, each) for each in await ask(wanted))
    return [found[group] for group in range(groups)]


def few(sources: Sources) -> bool:
    """Whether the last round sent so little that one task takes the next ones of all ranges."""
    held = sum(each.size for sent in sources for each in sent)
    return sum(each.size for each in sources[-1]) <= FEW_BYTES and held <= ALONE_BYTES_MAX


def failed_row(told: RoundTold) -> Dealt:
    """A failure as a row of the last stage."""
    return Dealt(LAST, 0, FAILED, msgspec.msgpack.encode((told.failure, told.message)))


def exchanged_row(sources: Sources) -> Dealt:
    """The bytes that rounds have sent, as a row of the last stage."""
    size = sum(each.size for sent in sources for each in sent)
    return Dealt(LAST, 0, EXCHANGED, msgspec.msgpack.encode(size))


@dataclass(slots=True)
class _Range:
    """The engine of one range, and the rounds that it has taken in."""

    engine: DataflowEngine
    taken: int = 0


_KEPT: OrderedDict[tuple[str, int, int], _Range] = OrderedDict()
"""Of the ranges that this process has evaluated last."""


class RoundWork:
    """Tasks of the rounds of one fragment, whose ranges are in `groups` groups."""

    def __init__(self, work: WindowWork, number: int, groups: int) -> None:
        self.window = work
        self._fragment: Fragment = work.fragments[number]
        self._groups = groups
        self._changes: dict[int, dict[str, list[bytes]]] | None = None

    def chosen(self, group: int, wanted: Collection[int], taken: int) -> int:
        """The group that a task for `group` takes, of those `wanted`.

        It is one whose engines this process has kept after so many rounds, where it has any. A task
        that takes another one than its own leaves that to who has kept it, or to a later task.
        """
        kept = {
            at % self._groups
            for (name, number, at), each in _KEPT.items()
            if (name, number) == (self.window.name, self._fragment.number) and each.taken == taken
        }
        mine = kept.intersection(wanted)
        return group if group in mine else min(mine, default=group)

    async def deal(self, at: int) -> RoundTold:
        """Deal out one part of an input of a fresh view before the first round."""
        rows = [each async for each in self.window.deal(self._fragment.number, at)]
        return RoundTold(await self._send(rows, f"part-{at}"))

    async def begin(self, group: int, rows: Sequence[Dealt]) -> RoundTold:
        """Keep what other fragments dealt to the ranges of a group before the first round."""
        return RoundTold(await self._send(rows, f"begin-{group}"), group=group)

    async def take(self, group: int, sources: Sources) -> RoundTold:
        """Take in the last round of a group; what follows from it for the next one."""
        found: list[Dealt] = []
        try:
            async for at, kept in self._ranges(group, sources, len(sources)):
                found += self._derived(kept.engine)
                self._keep(at, kept)
            return RoundTold(await self._send(found, f"{len(sources)}-{group}"), group=group)
        except (LimitPassed, Exhausted, Corrupt, PartGone) as error:
            return RoundTold([], FAILURES[type(error)], str(error), group)

    async def tell(self, group: int, sources: Sources) -> AsyncIterator[Dealt]:
        """The answers of the ranges of a group after the last round."""
        try:
            async for at, kept in self._ranges(group, sources, len(sources) + 1):
                self._derived(kept.engine)
                found = self._found(kept.engine)
                async for dealt in self.window.write_found(self._fragment, at, found):
                    yield dealt
        except (LimitPassed, Exhausted, Corrupt, PartGone) as error:
            yield failed_row(RoundTold([], FAILURES[type(error)], str(error)))

    async def answer(self, group: int, sources: Sources) -> RoundTold:
        """The same, of which objects have what is for later fragments."""
        found = [each async for each in self.tell(group, sources)]
        sent = await self._send((e for e in found if e.stage != LAST), f"told-{group}")
        return RoundTold(sent, group=group, rows=[e for e in found if e.stage == LAST])

    def _found(self, engine: DataflowEngine) -> RangeFound:
        divided, window = self.window.divided, self.window.window
        if window.fresh:
            return divided.found(self._fragment, engine)
        return divided.found_again(self._fragment, engine, whole=window.whole)

    async def _engine(self, at: int) -> DataflowEngine:
        if self._changes is None:
            self._changes = self.window.changes(self._fragment)
        return await self.window.again(self._fragment, at, self._changes.get(at, {}))

    async def _ranges(
        self, group: int, sources: Sources, upto: int
    ) -> AsyncIterator[tuple[int, _Range]]:
        """The ranges of a group, of which all rounds but the last one are taken in and told.

        Objects of the last one wait to be derived from; there are none after `sources`.
        """
        last: dict[int, dict[str, list[bytes]]] | None = None
        for at in range(group, self.window.divided.ranges_of(self._fragment), self._groups):
            kept = _KEPT.pop(self._key(at), None)
            if kept is None or kept.taken != upto - 1:
                kept = _Range(await self._engine(at))
                for sent in sources[: upto - 1]:
                    self._feed(kept.engine, (await self._rows(group, [sent])).get(at, {}))
                if upto > 1:
                    self._derived(kept.engine)
            if last is None:
                last = await self._rows(group, sources[upto - 1 :])
            self._feed(kept.engine, last.get(at, {}))
            kept.taken = upto
            yield at, kept

    def _feed(self, engine: DataflowEngine, rows: Mapping[str, Sequence[bytes]]) -> None:
        divided = self.window.divided
        divided.feed_before(engine, self._fragment, rows, {})
        divided.feed(engine, self._fragment, rows, live=not self.window.window.fresh)

    def _derived(self, engine: DataflowEngine) -> Iterator[Dealt]:
        """Derivations from all that waits, for the ranges of the fragment itself."""
        engine.settle()
        engine.allowance.settle(engine.nbytes)
        upper = min(self.window.divided.history.upper, END_WORD)
        told = {
            name: OutputChanges(engine.schemas[name], engine.moves(name, upper), engine.texts)
            for name in self._fragment.returning
        }
        names = {name: "" for name, each in told.items() if len(each)}
        return iter(self.window.divided.crossing(self._fragment, told, names))

    def _keep(self, at: int, kept: _Range) -> None:
        """Keep an engine for the next round, unless too much is kept; none of another window."""
        for key in [key for key in _KEPT if key[0] != self.window.name]:
            del _KEPT[key]
        _KEPT[self._key(at)] = kept
        while sum(each.engine.nbytes for each in _KEPT.values()) > KEPT_BYTES_MAX:
            _KEPT.popitem(last=False)

    def _key(self, at: int) -> tuple[str, int, int]:
        return self.window.name, self._fragment.number, at

    async def _send(self, rows: Iterable[Dealt], place: str) -> list[Sent]:
        """Objects with some rows, for each group that has any. Names follow from the contents."""
        by_group: dict[int, list[Dealt]] = {}
        for each in rows:
            by_group.setdefault(each.range % self._groups, []).append(each)
        found = []
        window, state = self.window.window, self.window.divided.history.target.state
        for group, mine in sorted(by_group.items()):
            data = msgspec.msgpack.encode(mine)
            digest = blake2b(data, digest_size=8).hexdigest()
            name = f"{self.window.name}-{self._fragment.number}-{place}-{group}-{digest}"
            key = part_key(state, name, window.begun_ms)
            await self.window.blob.put(key, data)
            found.append(Sent(group, key, len(data)))
        return found

    async def _rows(self, group: int, sources: Sources) -> dict[int, dict[str, list[bytes]]]:
        """The rows that were sent to the ranges of a group. Raises: PartGone."""
        found: list[Dealt] = []
        for each in (one for sent in sources for one in sent if one.group == group):
            found += await read_sent(self.window.blob, each.key)
        return by_range(found)


async def read_sent(blob: Blob, key: str) -> list[Dealt]:
    """The rows of an object that was sent. Raises: PartGone."""
    data = await blob.get(key)
    if data is None:
        raise PartGone(f"object {key} of a round is gone")
    return msgspec.msgpack.decode(data, type=list[Dealt])
