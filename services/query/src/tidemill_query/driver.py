"""Answers questions about collections: contents, changes, reasons."""

from __future__ import annotations

import math
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TypeVar

from tidemill.arrangement.updates import DIFF
from tidemill.catalog.apply.turns import in_turns
from tidemill.catalog.directory import Directory, Readable, ViewOf
from tidemill.datalog.column_types import literal_type, never_equal
from tidemill.datalog.drawing import svg_of
from tidemill.datalog.logical.plan import logical_plan
from tidemill.datalog.records import Blank, Record, parse_record
from tidemill.datalog.values import INT_MAX, INT_MIN
from tidemill.errors import (
    BeforeSince,
    UnknownCollection,
    UsageError,
)
from tidemill.host.questions import reasons
from tidemill.host.questions.histories import Histories, presences_of
from tidemill.host.questions.limits import QuestionLimits
from tidemill.host.questions.proving import Prover
from tidemill.host.questions.working import RECORDS_INLINE_MAX, Workers
from tidemill.rpc.messages import (
    Answer,
    Changes,
    CollectionInfo,
    Condition,
    Event,
    Explanation,
    Progress,
    TimestampExplanation,
    Translation,
)
from tidemill.rpc.paging import Page, cut
from tidemill.runtime.clock import Clock
from tidemill.shard import Collections, Updates
from tidemill.shard.offloading import ROWS_INLINE_MAX, all_of
from tidemill.shard.pruning import matching
from tidemill.time import Antichain, SourceFrontier, sole_time
from tidemill_query import plans
from tidemill_query.conditions import filter_of, fixed_by
from tidemill_query.contents import Contents
from tidemill_query.goals import row_goal, split_name
from tidemill_query.instants import definite_instant, refuse_early_end
from tidemill_query.listing import TURN, collection_info
from tidemill_query.settings import QuerySettings
from tidemill_query.shared_holds import SharedHolds
from tidemill_query.timestamps import chosen_of
from tidemill_query.translating import Translator

CHOICES_MAX = 8
"""So often an instant is chosen for a question that names none, before it is said that its history
was let go.
"""

T = TypeVar("T")

_TEXTS = re.compile(r'"(?:[^"\\\n]++|\\.)*+"')


async def _nothing() -> None:
    return


def _load_explaining() -> None:
    """Load the code that explains views: the first time it loads loops."""
    from tidemill_query import explaining  # noqa: F401


class QueryDriver:
    """Guarantees of QueryHandlers: exact at an instant, or an error that names since or upper."""

    def __init__(
        self,
        collections: Collections,
        directory: Directory,
        clock: Clock,
        settings: QuerySettings,
        discover: Callable[[], Awaitable[None]] = _nothing,
        limits: QuestionLimits | None = None,
        explains: Callable[[str], bool] = lambda view: True,
        listed_age_s: float | None = None,
    ) -> None:
        """`discover` lets the directory learn of collections that other processes have created.

        `explains` says whether who asks now may see the facts that a view is derived from. A list
        has versions of at most `listed_age_s` ago, by default as `Collections.statuses` says.
        """
        self._listed_age_s = listed_age_s
        self._limits = limits or QuestionLimits()
        self._workers = Workers(self._limits)
        self._collections = collections
        self._directory = directory
        self._clock = clock
        self._settings = settings
        self._discover = discover
        self._holds = SharedHolds(collections, clock, settings.session_lease_ms)
        self._instant = partial(definite_instant, collections)
        self._contents = Contents(collections, settings, self._limits, self._workers)
        self._histories = Histories(collections, self._contents.reading, self._workers)
        self._prover = Prover(directory, self._histories, self._workers, settings.reach, explains)
        self._translator = Translator(
            collections, clock, self._contents.reading, self._instant, self._workers, self._limits
        )

    async def _choose(self, as_of: int | None, answer: Callable[[], Awaitable[T]]) -> T:
        """The answer; where nobody asked for an instant and the history of the chosen one is let go
        meanwhile, anew.

        The process may stand still for longer than a collection is retained. Raises: BeforeSince
        for an instant that was asked for, or if that happens at every choice.
        """
        for _ in range(0 if as_of is not None else CHOICES_MAX - 1):
            with suppress(BeforeSince):
                return await answer()
        return await answer()

    async def snapshot(
        self,
        collection: str,
        as_of: int | None,
        wait_s: float | None,
        where: Sequence[Condition] = (),
    ) -> Answer:
        """The whole collection at one instant, or its rows that meet every condition."""
        found = await self._find(collection)
        if where:
            return await self._choose(as_of, lambda: self._select(found, where, as_of, wait_s))
        return await self._choose(as_of, lambda: self._answer(found.collection, as_of, wait_s))

    async def _select(
        self,
        readable: Readable,
        where: Sequence[Condition],
        as_of: int | None,
        wait_s: float | None,
    ) -> Answer:
        schema = (await self._contents.recent_version(readable.collection)).description.schema
        fixed = fixed_by(where, schema)
        test = None if len(fixed) == len(where) else filter_of(where, schema)
        at = await self._instant(readable.collection, as_of, wait_s)
        found_in = await self._contents.find_by(readable, fixed, at)
        status = await self._contents.readable_at(readable.collection, at)
        table = await self._contents.read(found_in, at, fixed)
        if test is not None:
            long = table.num_rows > ROWS_INLINE_MAX
            table = await self._workers.beside(long, matching, table, test)
        self._contents.refuse_large(table.nbytes)
        columns = table.select([*schema.names, DIFF])
        return Answer(columns, at, status.since, status.upper, readable.collection)

    async def _find(self, name: str) -> Readable:
        """A collection by its name, also if another process has created it since. Raises:
        UnknownCollection.
        """
        with suppress(UnknownCollection):
            return self._directory.find(name)
        await self._discover()
        return self._directory.find(name)

    async def _answer(
        self, collection: str, as_of: int | None, wait_s: float | None, others: int = 0
    ) -> Answer:
        """All rows, beside those of `others`, bytes that are in the same answer already."""
        at = await self._instant(collection, as_of, wait_s)
        status = await self._contents.readable_at(collection, at)
        table = await self._contents.read(collection, at, others=others)
        self._contents.refuse_large(others + table.nbytes)
        return Answer(table, at, status.since, status.upper, collection)

    def _refuse_long(self, question: str, told: str = "it has") -> None:
        """Raises: UsageError for a question too long to be read on the event loop."""
        size, most = len(question.encode()), self._limits.question_bytes
        if size > most:
            raise UsageError(
                f"question refused: {told} {size:,} bytes, more than {most:,} (limits.question_bytes);"
                " ask for less with one goal",
                reason="limits",
            )

    def _refuse_long_record(self, record: str) -> None:
        """Raises: UsageError. A text is one token of the grammar, however long it is."""
        size, most = len(record.encode()), self._limits.record_bytes
        if size > most:
            raise UsageError(
                f"question refused: its record has {size:,} bytes, more than {most:,} "
                "(limits.record_bytes)",
                reason="limits",
            )
        self._refuse_long(_TEXTS.sub("", record), "outside of its texts it has")

    async def ask(self, goal: str, as_of: int | None, wait_s: float | None) -> Answer:
        """The records that match a goal at one instant."""
        self._refuse_long(goal)
        return await self._choose(as_of, lambda: self._ask(goal, as_of, wait_s))

    async def _ask(self, goal: str, as_of: int | None, wait_s: float | None) -> Answer:
        name, rest = split_name(goal)
        readable = await self._find(name)
        if not rest:
            return await self._answer(readable.collection, as_of, wait_s)
        compiled = await self._workers.read_beside(goal, row_goal, goal, readable)
        at = await self._instant(readable.collection, as_of, wait_s)
        found_in = await self._contents.find_by(readable, compiled.fixed, at)
        status = await self._contents.readable_at(readable.collection, at)
        rows = await self._contents.read(found_in, at, compiled.fixed)
        table = await self._workers.beside(rows.num_rows > ROWS_INLINE_MAX, compiled.answer, rows)
        self._contents.refuse_large(table.nbytes)
        return Answer(table, at, status.since, status.upper, readable.collection)

    async def subscribe(
        self, goal: str, start: int | None, snapshot: bool, until: int | None
    ) -> AsyncIterator[Event]:
        """Changes of a goal or collection; history is let go of as it has been sent."""
        self._refuse_long(goal)
        name, rest = split_name(goal)
        readable = await self._find(name)
        compiled = await self._workers.read_beside(goal, row_goal, goal, readable) if rest else None
        async with self._holds.following(readable.collection, start) as subscriber:
            # NB: chosen under the hold: what is let go before it is not chosen.
            at = (
                await self._instant(readable.collection, None, math.inf) if start is None else start
            )
            refuse_early_end(at, until, snapshot)
            stream = self._collections.subscribe(
                subscriber.held,
                at,
                snapshot=snapshot,
                up_to=until,
                where=compiled and compiled.where,
            )
            async for item in stream:
                if isinstance(item, Updates):
                    table = item.table
                    if compiled is not None:
                        long = table.num_rows > ROWS_INLINE_MAX
                        table = await self._workers.beside(long, compiled.select, table)
                    if table.num_rows:
                        yield Changes(table)
                    continue
                yield Progress(item.upper)
                if not item.upper.empty and sole_time(item.upper) > at + 1:
                    subscriber.reached(sole_time(item.upper) - 1)

    async def tables(
        self, names: Sequence[str], as_of: int | None, wait_s: float | None
    ) -> Mapping[str, Answer]:
        """All named collections at one instant, by default the latest at which all are definite.

        All of them together are waited for, for `wait_s`. Raises: UsageError for collections of two
        timelines, whose instants are not the same.
        """
        end_s = None if wait_s is None else self._clock.monotonic_s() + wait_s

        def left() -> float | None:
            return None if end_s is None else max(0.0, end_s - self._clock.monotonic_s())

        ids = {name: (await self._find(name)).collection for name in names}
        await self._refuse_two_timelines(ids)

        async def answers() -> Mapping[str, Answer]:
            at = as_of
            if at is None and ids:
                at = min(await all_of(self._instant(each, None, left()) for each in ids.values()))
            found: dict[str, Answer] = {}
            for name, each in ids.items():
                others = sum(answer.table.nbytes for answer in found.values())
                found[name] = await self._answer(each, at, left(), others)
            return found

        return await self._choose(as_of, answers)

    async def _refuse_two_timelines(self, ids: Mapping[str, str]) -> None:
        first: tuple[str, str] | None = None
        for name, collection in ids.items():
            timeline = (await self._collections.status(collection)).timeline
            first = first or (name, timeline)
            if timeline != first[1]:
                raise UsageError(
                    f"{first[0]} is on the timeline {first[1]}, {name} on {timeline}: one instant "
                    "means nothing for both; ask for each by itself, or bring one onto the other's "
                    "timeline by a view",
                    reason="timelines",
                )

    async def collections(self, page: Page | None = None) -> Sequence[CollectionInfo]:
        """Every collection with its frontiers and who holds them, in the order of their ids.

        Of a page no other one is looked at.
        """
        ids = cut(await self._collections.ids(), page, str)
        found, listed = await self._collections.statuses(ids, self._listed_age_s), []
        async for collection in in_turns(ids, TURN):
            status = found[collection]
            if isinstance(status, Exception):
                raise status
            listed.append(collection_info(status, self._clock.now_ms()))
        return listed

    async def explain_timestamp(
        self, names: Sequence[str], as_of: int | None
    ) -> TimestampExplanation:
        """Which instant a question gets: the last one before the least upper of what it reads (F11,
        F13).
        """
        if not names:
            raise UsageError("name a collection, a goal or a view", reason="NoName")
        found = {}
        for name in names:
            for each in await self._read_by(name):
                status = await self._collections.status(each.collection)
                found[each.collection] = name, collection_info(status, self._clock.now_ms())
        return chosen_of(list(found.values()), as_of)

    async def translate(
        self, source: str, wanted: int | SourceFrontier | None, wait_s: float | None
    ) -> Translation:
        """The offsets that the answer of a source at an instant is made of.

        For given offsets: the least instant at which the answer has them all.
        """
        await self._find(source)
        found, answer = self._directory.source(source), self._translator
        if isinstance(wanted, Antichain):
            return await answer.find_covering(found, wanted, wait_s)
        return await self._choose(wanted, lambda: answer.as_of(found, wanted, wait_s))

    async def _read_by(self, name: str) -> list[Readable]:
        """The collection of a name or goal; for the name of a view, its outputs and all that it
        reads.
        """
        with suppress(UnknownCollection):
            view = self._directory.view(name)
            return [*view.outputs.values(), *view.inputs.values()]
        return [await self._find(split_name(name)[0])]

    async def why(self, record: str, as_of: int | None) -> Explanation:
        """The proof of a record that is present; where views read what others derive, through all
        of them.
        """
        return await self._choose(as_of, lambda: self._prove(record, as_of))

    async def _prove(self, written: str, as_of: int | None) -> Explanation:
        view, asked, collection = await self._question(written, blanks=False)
        at = await self._instant(collection, as_of, None)
        return await self._prover.prove(view, asked, at)

    async def why_not(self, record: str, as_of: int | None) -> Explanation:
        """For each rule that could derive the record, what stopped it."""
        return await self._choose(as_of, lambda: self._absence(record, as_of))

    async def _absence(self, written: str, as_of: int | None) -> Explanation:
        view, asked, collection = await self._question(written, blanks=True)
        upper = (await self._collections.status(collection)).upper
        allowance = self._workers.allowance()
        if as_of is not None and upper.less_equal(as_of):
            return await self._workers.reason(
                allowance, reasons.absence, view.program, {}, (), asked, as_of, sole_time(upper)
            )
        at = await self._instant(collection, as_of, None)
        if view.ticks is not None:
            async with self._prover.ticks_of(view, view.ticks, asked, at, allowance) as found:
                history, asked, node = found
                letters = await self._letters(view)
                return await self._workers.reason(
                    allowance, reasons.absence_in_ticks, history, letters, asked, at, node, at + 1
                )
        # Rows from after the instant may be the missing ones.
        last = at if upper.empty else sole_time(upper) - 1
        until = max(at, min(last, at + self._settings.proof_history_ms))
        inputs = await self._prover.inputs_of(view, asked, at, until, {}, allowance)
        letters = await self._letters(view)
        return await self._workers.reason(
            allowance, reasons.absence, view.program, inputs, letters, asked, at, until + 1
        )

    async def _question(self, written: str, blanks: bool) -> tuple[ViewOf, Record, str]:
        """The view that derives or reads a record, the record as it knows it, and the collection
        that answers.
        """
        self._refuse_long_record(written)
        name, text = split_name(written)
        parse = partial(parse_record, blanks=blanks)
        asked = await self._workers.read_beside(written, parse, text or written)
        view = self._directory.view_of(name)
        known, collection = self._asked_in(view, name, asked)
        _refuse_other_columns(view, known)
        return view, known, collection

    async def _letters(self, view: ViewOf) -> list[Record]:
        """The events that came late to the inputs of a view, under the names that its program has
        for them.
        """
        return [
            replace(letter, predicate=predicate)
            for predicate, readable in view.inputs.items()
            for letter in await self._late(readable)
        ]

    def _asked_in(self, view: ViewOf, name: str, asked: Record) -> tuple[Record, str]:
        """The record under the predicate by which the view knows it, and the collection that
        answers.

        A source may be asked about by its own name, though programs read it under another.
        """
        if asked.predicate in view.outputs:
            return asked, view.outputs[asked.predicate].collection
        everything = next(iter(view.outputs.values())).collection
        if asked.predicate in view.inputs:
            return asked, everything
        named = self._directory.find(name).collection
        for predicate, readable in view.inputs.items():
            if readable.collection == named:
                return replace(asked, predicate=predicate), everything
        return asked, everything

    async def _late(self, readable: Readable) -> Sequence[Record]:
        """The events of an input that came late and were refused, as far as anybody knows now."""
        if readable.late is None:
            return ()
        collection, events = readable.late
        at = await self._instant(collection, None, None)
        async with self._contents.reading(collection, "why") as held:
            rows = await self._collections.snapshot(held, at)
        return await self._workers.beside(rows.num_rows > RECORDS_INLINE_MAX, events, rows)

    async def explain(self, view: str, form: str) -> str:
        """A view in one of `plans.EXPLANATIONS`. Raises: UsageError."""
        found = self._directory.view(view)
        allowance = self._workers.allowance()
        await self._workers.run(allowance, _load_explaining)
        from tidemill_query import explaining  # loaded by now, and not on the event loop

        drawn = {"svg": svg_of, "dot": explaining.plan_drawn}
        if form in drawn:
            return await self._workers.run(allowance, drawn[form], found.program)
        plans.check_form(form)
        status, state_of = self._collections.status, self._collections.state
        inputs = found.inputs.items()
        parts = {p: (each, (await state_of(each.collection)).parts()) for p, each in inputs}
        known = await self._workers.run(allowance, explaining.known_of, parts)
        if form == "json":
            return await self._workers.run(allowance, explaining.plan_json, found.program, known)
        if form == "analyze-json":
            return await self._analysis(found, explaining.analysis_json)
        lines = [f"view {found.name}", *([found.kept] if found.kept else []), ""]
        if form == "analyze" and not found.program.ticked:
            lines += await self._analysis(found, explaining.analysis_text)
        else:
            lines += await self._workers.run(allowance, explaining.plan_text, found.program, known)
        for title, readables in (("inputs", found.inputs), ("outputs", found.outputs)):
            lines += ["", title]
            for predicate, readable in sorted(readables.items()):
                state = await status(readable.collection)
                lines.append(
                    f"  {predicate} = {readable.collection}  since {state.since}  upper "
                    f"{state.upper}  {state.updates} updates in {state.batches} batches"
                )
                if title == "inputs":
                    lines += await self._alike(found, predicate)
        lines += [f"  warning: {w.code} {w.message}" for w in found.program.warnings]
        return "\n".join(lines)

    async def _alike(self, found: ViewOf, predicate: str) -> list[str]:
        """With which views an input is shared where they run in one process."""
        description = await self._collections.description(found.inputs[predicate].collection)
        whole, every = description.allow_negative, self._directory.views()
        allowance = self._workers.allowance()
        names = await self._workers.run(allowance, plans.alike, found, predicate, whole, every)
        return [f"    shared with {', '.join(names)}"] if names else []

    async def _analysis(self, found: ViewOf, told: Callable[..., T]) -> T:
        """The program derived once from what the inputs hold at the last definite instant."""
        at = await self._instant(next(iter(found.outputs.values())).collection, None, None)
        allowance = self._workers.allowance()
        plan = await self._workers.run(allowance, logical_plan, found.program)
        inputs = await self._histories.read(found.inputs, at, at, plan.scans, allowance)
        timer = self._clock.monotonic_s

        def analysed() -> T:
            with presences_of(inputs, allowance) as present:
                return told(found.program, present, at, timer, allowance)

        return await self._workers.run(allowance, analysed)


def _refuse_other_columns(view: ViewOf, asked: Record) -> None:
    """Raises: UsageError for a record whose values can never be those of its predicate."""
    numbers = [each for each in (*asked.arguments, asked.time) if type(each) is int]
    if any(not INT_MIN <= each <= INT_MAX for each in numbers):
        raise UsageError(
            "record refused: a whole number of it has more than 64 bits", reason="InvalidRecord"
        )
    name, readable = asked.predicate, view.outputs.get(asked.predicate)
    readable = readable or view.inputs.get(name)
    if readable is not None:
        columns = readable.columns[: readable.arguments]
    elif name in view.program.columns:
        columns = view.program.columns[name]
    else:
        return
    if len(asked.arguments) != len(columns):
        raise UsageError(
            f"record refused: {name} has {len(columns)} columns, not {len(asked.arguments)}; "
            f"write {name}({', '.join(each for each, _ in columns)}) with a value for each",
            reason="InvalidRecord",
        )
    for value, (column, kind) in zip(asked.arguments, columns, strict=True):
        mistake = None if isinstance(value, Blank) else never_equal(kind, literal_type(value))
        if mistake is not None:
            raise UsageError(f"record refused: {name}: {column}: {mistake}", reason="InvalidRecord")
