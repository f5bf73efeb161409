"""Inputs given to a target in forked children, so that one that ends its process is found as others
are.
"""

from __future__ import annotations

import mmap
import os
import resource
import signal
import struct
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import monotonic, sleep  # noqa: TID251  a watchdog of processes

import msgspec

from tidemill.testkit.fuzzing.mutation import mutated

BLOCK = 2_000
"""So many inputs are given to one child."""
SILENCE_S_MAX = 30.0
"""An input that takes longer is a finding: its child is killed."""
MEMORY_BYTES_MAX = 8 << 30
FINDINGS_MAX = 5
"""A target with so many findings is left."""
_PLACE = struct.Struct("<q")
_TOLD = msgspec.msgpack.Decoder(tuple[int, list[tuple[int, str]]])


@dataclass(frozen=True, slots=True)
class Target:
    """A function of bytes, good inputs from which others are made, and the errors that it may
    raise.

    `share` is its part of the inputs of a run, beside 1 of others; less for a slow one.
    """

    name: str
    seeds: tuple[bytes, ...]
    call: Callable[[bytes], object]
    allowed: tuple[type[Exception], ...] = ()
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class Finding:
    """An input that did what none may; `number` and the seed of the run give it again."""

    target: str
    number: int
    what: str
    data: bytes

    def lines(self, seed: int) -> Iterator[str]:
        """The finding with what repeats it."""
        shown = self.data if len(self.data) <= 2_000 else self.data[:2_000] + b" ... cut"
        yield f"{self.target}, input {self.number} of seed {seed}: {self.what}"
        yield f"  input: {shown!r}"
        yield (
            f"  again: python -m tidemill.testkit.fuzzing --seed {seed} "
            f"--only {self.target} --at {self.number}"
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """Counts of one target over its inputs."""

    target: str
    given: int
    refused: int
    findings: tuple[Finding, ...]
    seconds: float


def run(target: Target, seed: int, inputs: int) -> Outcome:
    """Give inputs 0 … inputs − 1 of a seed to a target."""
    began = monotonic()
    findings: list[Finding] = []
    refused = at = 0
    while at < inputs and len(findings) < FINDINGS_MAX:
        stop = min(inputs, at + BLOCK)
        passed, more, found = _block(target, seed, at, stop)
        refused += more
        findings += found
        at = passed
    return Outcome(target.name, at, refused, tuple(findings), monotonic() - began)


def given(target: Target, seed: int, number: int) -> Finding | None:
    """One input, in a child of its own."""
    found = _block(target, seed, number, number + 1)[2]
    return found[0] if found else None


def input_of(target: Target, seed: int, number: int) -> bytes:
    """The bytes of an input."""
    return mutated(target.seeds, f"{seed} {target.name}", number)


def tried(target: Target, data: bytes) -> tuple[bool, str | None]:
    """(whether it was refused as it may be, what it did that it may not)."""
    try:
        target.call(data)
    except target.allowed:
        return True, None
    except BaseException as error:  # everything else is what is looked for
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{os.path.basename(last.filename)}:{last.lineno}"
        return False, f"{type(error).__name__}: {str(error)[:300]} at {place}"
    return False, None


def _block(target: Target, seed: int, start: int, stop: int) -> tuple[int, int, list[Finding]]:
    """(the number behind the last input given, how many were refused, findings)."""
    with mmap.mmap(-1, _PLACE.size) as place:
        _PLACE.pack_into(place, 0, start)
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.close(reading)
            _child(target, seed, range(start, stop), place, writing)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            how = _ended(child, place)
            told = pipe.read()
        (at,) = _PLACE.unpack_from(place, 0)
    refused, found = _TOLD.decode(told) if how is None else (0, [])
    findings = [
        Finding(target.name, number, what, input_of(target, seed, number)) for number, what in found
    ]
    if how is None:
        return stop, refused, findings
    findings.append(Finding(target.name, at, how, input_of(target, seed, at)))
    return at + 1, refused, findings


def _child(
    target: Target, seed: int, numbers: Sequence[int], place: mmap.mmap, writing: int
) -> None:
    """Give the inputs, tell the findings, and end."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 2)  # what native code says when it dies
    refused = 0
    found: list[tuple[int, str]] = []
    for number in numbers:
        _PLACE.pack_into(place, 0, number)
        wanted, wrong = tried(target, input_of(target, seed, number))
        refused += wanted
        if wrong is not None:
            found.append((number, wrong))
            if len(found) >= FINDINGS_MAX:
                break
    with os.fdopen(writing, "wb") as pipe:
        pipe.write(msgspec.msgpack.encode((refused, found)))
    os._exit(0)


def _ended(child: int, place: mmap.mmap) -> str | None:
    """The cause of a child's death; None if it came to its end. A child that hangs for long is
    killed.
    """
    moved, seen = monotonic(), place[:]
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        if place[:] != seen:
            moved, seen = monotonic(), place[:]
        elif monotonic() - moved > SILENCE_S_MAX:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return f"not decided within {SILENCE_S_MAX:g} s"
        sleep(0.005)
    if os.WIFSIGNALED(status):
        return f"the process died: {signal.Signals(os.WTERMSIG(status)).name}"
    return None if os.WEXITSTATUS(status) == 0 else f"the process ended: {os.WEXITSTATUS(status)}"
