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
from tidemill.shard.encoding import pack_description, unpack_description
from tidemill.time import frontier
from tidemill_compute.settings import ComputeSettings
from tidemill_compute.views.bulk import HISTORY_BYTES, HISTORY_BYTES_MAX, History
from tidemill_compute.views.view_target import ViewTarget


class HistorySpec(msgspec.Struct, frozen=True):
    """A bare History: the program is its text, and is checked once more.

    Plugins of the program go by name and version, and are loaded where the job runs.
    """

    name: str
    text: str
    file: str
    program_inputs: dict[str, InputSchema]
    named: Named
    inputs: dict[str, tuple[str, PredicateShape]]
    outputs: dict[str, tuple[str, PredicateShape]]
    errors: str
    state: str
    strategy: Strategy
    begin: list[int] | None
    limits: Limits
    settings: ComputeSettings
    read: dict[str, bytes]
    written: dict[str, bytes]
    bytes_max: int
    setting: str


def pack_history(
    history: History, bytes_max: int = HISTORY_BYTES_MAX, setting: str = HISTORY_BYTES
) -> bytes:
    """The bytes from which `unpack_history` gives the `bare` history; of a view without ticks.

    The evaluator may hold `bytes_max` in memory, by a setting.
    """
    target, program = history.target, history.target.program
    assert target.ticks is None, "no history of a view with ticks is evaluated in bulk"
    spec = HistorySpec(
        name=target.name, text=program.program.text, file=program.program.file,
        program_inputs=dict(program.inputs), named=program.vocabulary.named,
        inputs=dict(target.inputs), outputs=dict(target.outputs),
        errors=target.errors, state=target.state, strategy=target.strategy,
        begin=None if target.begin is None else list(target.begin), limits=target.limits,
        settings=history.settings,
        read={name: pack_description(each) for name, (each, _) in history.inputs.items()},
        written={name: pack_description(description) for name, description in history.written.items()},
        bytes_max=bytes_max, setting=setting,
    )  # fmt: skip
    return msgspec.msgpack.encode(spec, enc_hook=_bytes)


def unpack_history(packed: bytes) -> History:
    """The history that `pack_history` packed. Cost: the program is parsed and checked."""
    spec = msgspec.msgpack.decode(packed, type=HistorySpec, dec_hook=_schema)
    program = check(
        parse(spec.text, spec.file), InputSchemas(spec.program_inputs), vocabulary_of(spec.named)
    )
    target = ViewTarget(
        spec.name, program, spec.inputs, spec.outputs, spec.errors, spec.state, None, spec.strategy,
        None if spec.begin is None else frontier(*spec.begin), spec.limits,
        Allowance(spec.bytes_max, spec.setting, f"the history of view {spec.name}"),
    )  # fmt: skip
    read = {name: (unpack_description(each), ()) for name, each in spec.read.items()}
    written = {name: unpack_description(each) for name, each in spec.written.items()}
    return History(target, spec.settings, 0, 0, read, written)


def _bytes(schema: pa.Schema) -> bytes:
    """The one thing in a history that MessagePack has no form for."""
    data: bytes = schema.serialize().to_pybytes()
    return data


def _schema(kind: type, data: bytes) -> pa.Schema:
    """The inverse of `_bytes`."""
    assert kind is pa.Schema
    return pa.ipc.read_schema(pa.py_buffer(data))
