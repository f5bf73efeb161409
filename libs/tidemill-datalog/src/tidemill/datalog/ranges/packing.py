"""Programs, work and answers as bytes, for ranges evaluated elsewhere: data, never code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec

from tidemill.datalog.check import check
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.dataflow.schema import instant_of, instant_word
from tidemill.datalog.inputs import InputSchema, InputSchemas
from tidemill.datalog.limits import Limits
from tidemill.datalog.parser import parse
from tidemill.datalog.placement import Placement, placement_of
from tidemill.datalog.ranges.running import Ranges
from tidemill.datalog.ranges.work import Part, Settings, Update, Work, Worked, work_of_range
from tidemill.datalog.records import Record
from tidemill.datalog.state import StateRow, decode_fields, encode_fields
from tidemill.datalog.strategy import Strategy
from tidemill.errors import TidemillError

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


class _Work(msgspec.Struct, frozen=True):
    fragment: int
    number: int
    lower: int | None
    upper: int
    present: dict[str, list[_Row]]
    state: list[StateRow]
    changes: dict[str, list[_Row]]


class _Worked(msgspec.Struct, frozen=True):
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
    settings: Settings


def pack_program(checked: CheckedProgram, carrying: Iterable[str], settings: Settings) -> bytes:
    """A program of the standard vocabulary whose derived predicates are all told."""
    program = _Program(
        checked.program.text, dict(checked.inputs), sorted(carrying), list(checked.derived),
        settings.strategy, settings.limits,
    )  # fmt: skip
    return msgspec.msgpack.encode(program)


def pack_work(work: Work) -> bytes:
    """The work of one range."""
    part = work.part
    return msgspec.msgpack.encode(
        _Work(
            work.fragment, work.number, work.lower, work.upper, _packed(part.present),
            list(part.state), _packed(work.changes),
        )
    )  # fmt: skip


def work_packed(program: bytes, work: bytes) -> bytes:
    """The answer of a range, all as bytes; errors of the program are part of it.

    Cost: as `work_of_range`, and the text of a program that this process has not met.
    """
    placed, given = _placed(program), msgspec.msgpack.decode(work, type=_Work)
    part = Part(_unpacked(given.present), given.state)
    mine = Work(
        given.fragment, given.number, given.lower, given.upper, part, _unpacked(given.changes)
    )
    fragment = placed.placement.fragments[mine.fragment]
    try:
        found = work_of_range(fragment, mine, placed.told[mine.fragment], placed.settings)
    except TidemillError as error:
        return msgspec.msgpack.encode(_Worked({}, [], [], [], {}, str(error)))
    moves = {
        name: [(instant_word(at), pack_fact(record), diff) for at, record, diff in each]
        for name, each in found.moves.items()
    }
    return msgspec.msgpack.encode(
        _Worked(moves, list(found.errors), list(found.gone), list(found.come), dict(found.rows))
    )


def unpack_worked(answer: bytes) -> Worked:
    """The answer of a range. Raises: RangeFailed."""
    given = msgspec.msgpack.decode(answer, type=_Worked)
    if given.failed:
        raise RangeFailed(given.failed)
    moves = {
        name: [(instant_of(at), unpack_fact(fact), diff) for at, fact, diff in each]
        for name, each in given.moves.items()
    }
    return Worked(moves, given.errors, given.gone, given.come, given.rows)


@lru_cache(PROGRAMS_MAX)
def _placed(program: bytes) -> _Placed:
    given = msgspec.msgpack.decode(program, type=_Program)
    checked = check(parse(given.text), InputSchemas(given.inputs))
    placement = placement_of(checked, given.carrying)
    settings = Settings(given.strategy, given.limits)
    ranges = Ranges(placement, 1, given.told, settings)
    told = {each.number: ranges.told_of(each) for each in placement.fragments}
    return _Placed(placement, told, settings)


def _packed(updates: Mapping[str, Sequence[Update]]) -> dict[str, list[_Row]]:
    return {
        name: [(pack_fact(record), start, end, diff) for record, start, end, diff in each]
        for name, each in updates.items()
    }


def _unpacked(rows: Mapping[str, Sequence[_Row]]) -> dict[str, list[Update]]:
    return {
        name: [(unpack_fact(fact), start, end, diff) for fact, start, end, diff in each]
        for name, each in rows.items()
    }


def pack_fact(record: Record) -> str:
    """A fact with all that it shows, as one line of JSON."""
    fields: tuple[Any, ...] = (
        record.predicate, record.arguments, record.time, record.expires, record.parafacts
    )  # fmt: skip
    return encode_fields(fields)


def unpack_fact(fact: str) -> Record:
    """The fact of `pack_fact`."""
    return Record(*decode_fields(fact))
