"""Every parser and decoder under random bytes; and the fuzzer under faults that were planted."""

from __future__ import annotations

import subprocess
import sys

from tidemill.testkit.fuzzing.planted import PLANTED
from tidemill.testkit.fuzzing.running import given, input_of, run


def fuzzed(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A run in a process without threads, which children can be made of."""
    command = [sys.executable, "-m", "tidemill.testkit.fuzzing", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


def test_every_parser_and_decoder_ends_with_a_value_or_its_own_errors() -> None:
    done = fuzzed("--inputs", "100000", "--seed", "13")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "parquet-objects: " in done.stdout


def test_a_planted_crash_and_a_planted_exception_are_found_and_come_again() -> None:
    done = fuzzed("--inputs", "400", "--planted", "--seed", "5")
    assert done.returncode == 1
    assert "the process died: SIGSEGV" in done.stdout
    assert "ZeroDivisionError: planted" in done.stdout
    for target in PLANTED:
        first = run(target, 5, 200).findings[0]
        assert f"--only {target.name} --at {first.number}" in done.stdout
        assert repr(first.data) in done.stdout
        assert first.data == input_of(target, 5, first.number)
        again = given(target, 5, first.number)
        assert again is not None
        assert again == first


def test_an_input_is_repeated_by_its_number() -> None:
    found = run(PLANTED[0], 5, 200).findings[0]
    done = fuzzed("--only", "planted-crash", "--seed", "5", "--at", str(found.number))
    assert done.returncode == 1
    assert "the process died: SIGSEGV" in done.stdout
    assert fuzzed("--only", "records", "--at", "0").returncode == 0
