"""A history as bytes, for a job that evaluates it elsewhere: data alone, never code."""

from __future__ import annotations

import msgspec
import pyarrow as pa

from tidemill.catalog.plugins import vocabulary_of
from tidemill.catalog.record_rows import PredicateShape
from tidemill.datalog.allowance import Allowance
from tidemill.datalog.check import check
from tidemill.datalog.inputs import InputSchema, InputSchemas
from tidemill.datalog.limits import Limits
from tidemill.datalog.parser import parse
from tidemill.datalog.strategy import Strategy
from tidemill.datalog.vocabulary import Named
from tidemill.shard.encoding import pack_description, pack_part, unpack_description, unpack_part
from tidemill.time import frontier
from tidemill_compute.settings import ComputeSettings
from tidemill_compute.views.bulk import HISTORY_BYTES, HISTORY_BYTES_MAX, History
from tidemill_compute.views.view_target import ViewTarget


class _Shape(msgspec.Struct, frozen=True):
    predicate: str
    schema: bytes
    arguments: int
    timed: bool
    lattices: tuple[tuple[str, tuple[str, ...]], ...]
    written: frozenset[int]
    sure: frozenset[str]
    marked: tuple[str, ...]


class HistorySpec(msgspec.Struct, frozen=True):
    """A History without its derivable parts: the program is its text, and is checked once more.

    Plugins of the program go by name and version, and are loaded where the job runs.
    """

    name: str
    text: str
    file: str
    program_inputs: dict[str, InputSchema]
    named: Named
    inputs: dict[str, tuple[str, _Shape]]
    outputs: dict[str, tuple[str, _Shape]]
    errors: str
    state: str
    strategy: Strategy
    begin: list[int] | None
    limits: Limits
    settings: ComputeSettings
    lower: int
    upper: int
    parts: dict[str, tuple[bytes, list[bytes]]]
    written: dict[str, bytes]
    bytes_max: int
    setting: str


def pack_history(
    history: History, bytes_max: int = HISTORY_BYTES_MAX, setting: str = HISTORY_BYTES
) -> bytes:
    """The bytes from which `unpack_history` gives the same history; of a view without ticks.

    The evaluator may hold `bytes_max` in memory, by a setting.
    """
    target, program = history.target, history.target.program
    assert target.ticks is None, "no history of a view with ticks is evaluated in bulk"
    spec = HistorySpec(
        name=target.name, text=program.program.text, file=program.program.file,
        program_inputs=dict(program.inputs), named=program.vocabulary.named,
        inputs={p: (name, _packed_shape(shape)) for p, (name, shape) in target.inputs.items()},
        outputs={p: (name, _packed_shape(shape)) for p, (name, shape) in target.outputs.items()},
        errors=target.errors, state=target.state, strategy=target.strategy,
        begin=None if target.begin is None else list(target.begin), limits=target.limits,
        settings=history.settings, lower=history.lower, upper=history.upper,
        parts={
            name: (pack_description(description), [pack_part(part) for part in parts])
            for name, (description, parts) in history.inputs.items()
        },
        written={name: pack_description(description) for name, description in history.written.items()},
        bytes_max=bytes_max, setting=setting,
    )  # fmt: skip
    return msgspec.msgpack.encode(spec)


def unpack_history(packed: bytes) -> History:
    """The history that `pack_history` packed. Cost: the program is parsed and checked."""
    spec = msgspec.msgpack.decode(packed, type=HistorySpec)
    program = check(
        parse(spec.text, spec.file), InputSchemas(spec.program_inputs), vocabulary_of(spec.named)
    )
    target = ViewTarget(
        spec.name, program,
        {p: (name, _shape(shape)) for p, (name, shape) in spec.inputs.items()},
        {p: (name, _shape(shape)) for p, (name, shape) in spec.outputs.items()},
        spec.errors, spec.state, None, spec.strategy,
        None if spec.begin is None else frontier(*spec.begin), spec.limits,
        Allowance(spec.bytes_max, spec.setting, f"the history of view {spec.name}"),
    )  # fmt: skip
    inputs = {
        name: (unpack_description(description), tuple(unpack_part(part) for part in parts))
        for name, (description, parts) in spec.parts.items()
    }
    written = {name: unpack_description(description) for name, description in spec.written.items()}
    return History(target, spec.settings, spec.lower, spec.upper, inputs, written)


def _packed_shape(shape: PredicateShape) -> _Shape:
    return _Shape(
        shape.predicate, shape.schema.serialize().to_pybytes(), shape.arguments, shape.timed,
        shape.lattices, shape.written, shape.sure, shape.marked,
    )  # fmt: skip


def _shape(packed: _Shape) -> PredicateShape:
    return PredicateShape(
        packed.predicate, _schema(packed.schema), packed.arguments, packed.timed, packed.lattices,
        packed.written, packed.sure, packed.marked,
    )  # fmt: skip


def _schema(data: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(data))
