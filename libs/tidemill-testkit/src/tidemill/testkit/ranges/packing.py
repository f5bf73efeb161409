"""Programs, tasks and answers as bytes, for ranges evaluated elsewhere: data, never code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import msgspec

from tidemill.datalog.check import check
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.dataflow.schema import instant_of, instant_word
from tidemill.datalog.inputs import InputSchema, InputSchemas
from tidemill.datalog.limits import Limits
from tidemill.datalog.parser import parse
from tidemill.datalog.placement import Placement, placement_of
from tidemill.datalog.records import Record
from tidemill.datalog.state import StateRow, decode_fields, encode_fields
from tidemill.datalog.strategy import Strategy
from tidemill.errors import TidemillError
from tidemill.testkit.ranges.running import Ranges
from tidemill.testkit.ranges.task import (
    RangeAnswer,
    RangeContents,
    RangeSettings,
    RangeTask,
    Update,
    evaluate_range,
)

PROGRAMS_MAX = 256
"""Programs that a process keeps placed."""
_Row = tuple[str, int, int, int]
"""A fact as JSON, with start, end and diff."""


class _Program(msgspec.Struct, frozen=True):
    """A program is its text, and is checked and placed once more."""

    text: str
    inputs: dict[str, InputSchema]
    carrying: list[str]
    told: list[str]
    strategy: Strategy
    limits: Limits | None


class _Task(msgspec.Struct, frozen=True):
    fragment: int
    number: int
    ranges: int
    lower: int | None
    upper: int
    present: dict[str, list[_Row]]
    state: list[StateRow]
    changes: dict[str, list[_Row]]


class _Answer(msgspec.Struct, frozen=True):
    """`failed` says why there is no answer: a task that fails would be tried again."""

    moves: dict[str, list[tuple[int, str, int]]]
    errors: list[tuple[str, int, int]]
    gone: list[StateRow]
    come: list[StateRow]
    rows: dict[str, int]
    failed: str = ""


class RangeFailed(Exception):
    """A range has no answer, for a reason that another attempt would not change."""


@dataclass(frozen=True, slots=True)
class _Placed:
    """A program as tasks keep it."""

    placement: Placement
    told: Mapping[int, frozenset[str]]
    settings: RangeSettings


def pack_program(
    checked: CheckedProgram, carrying: Iterable[str], settings: RangeSettings
) -> bytes:
    """A program of the standard vocabulary whose derived predicates are all told."""
    program = _Program(
        checked.program.text, dict(checked.inputs), sorted(carrying), list(checked.derived),
        settings.strategy, settings.limits,
    )  # fmt: skip
    return msgspec.msgpack.encode(program)


def pack_task(task: RangeTask) -> bytes:
    """The bytes of a task."""
    part = task.part
    return msgspec.msgpack.encode(
        _Task(
            task.fragment, task.number, task.ranges, task.lower, task.upper,
            _packed(part.present), list(part.state), _packed(task.changes),
        )
    )  # fmt: skip


def evaluate_packed(program: bytes, task: bytes) -> bytes:
    """The answer of a range, all as bytes; errors of the program are part of it.

    Cost: as `evaluate_range`, and the text of a program that this process has not met.
    """
    placed, given = _placed(program), msgspec.msgpack.decode(task, type=_Task)
    part = RangeContents(_unpacked(given.present), given.state)
    mine = RangeTask(
        given.fragment, given.number, given.ranges, given.lower, given.upper, part,
        _unpacked(given.changes),
    )  # fmt: skip
    fragment = placed.placement.fragments[mine.fragment]
    try:
        found = evaluate_range(fragment, mine, placed.told[mine.fragment], placed.settings)
    except TidemillError as error:
        return msgspec.msgpack.encode(_Answer({}, [], [], [], {}, str(error)))
    moves = {
        name: [(instant_word(at), _pack_fact(record), diff) for at, record, diff in each]
        for name, each in found.moves.items()
    }
    return msgspec.msgpack.encode(
        _Answer(moves, list(found.errors), list(found.gone), list(found.come), dict(found.rows))
    )


def unpack_answer(answer: bytes) -> RangeAnswer:
    """The answer of a range. Raises: RangeFailed."""
    given = msgspec.msgpack.decode(answer, type=_Answer)
    if given.failed:
        raise RangeFailed(given.failed)
    moves = {
        name: [(instant_of(at), _unpack_fact(fact), diff) for at, fact, diff in each]
        for name, each in given.moves.items()
    }
    return RangeAnswer(moves, given.errors, given.gone, given.come, given.rows)


@lru_cache(PROGRAMS_MAX)
def _placed(program: bytes) -> _Placed:
    given = msgspec.msgpack.decode(program, type=_Program)
    checked = check(parse(given.text), InputSchemas(given.inputs))
    placement = placement_of(checked, given.carrying)
    settings = RangeSettings(given.strategy, given.limits)
    ranges = Ranges(placement, 1, given.told, settings)
    told = {each.number: ranges.told_of(each) for each in placement.fragments}
    return _Placed(placement, told, settings)


def _packed(updates: Mapping[str, Sequence[Update]]) -> dict[str, list[_Row]]:
    return {
        name: [(_pack_fact(record), start, end, diff) for record, start, end, diff in each]
        for name, each in updates.items()
    }


def _unpacked(rows: Mapping[str, Sequence[_Row]]) -> dict[str, list[Update]]:
    return {
        name: [(_unpack_fact(fact), start, end, diff) for fact, start, end, diff in each]
        for name, each in rows.items()
    }


def _pack_fact(record: Record) -> str:
    fields = (record.predicate, record.arguments, record.time, record.expires, record.parafacts)
    return encode_fields(fields)


def _unpack_fact(fact: str) -> Record:
    return Record(*decode_fields(fact))
