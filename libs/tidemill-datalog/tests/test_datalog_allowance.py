"""Allowances: an evaluation gives up long before memory is gone, and answers within its own."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tidemill.datalog.allowance import Allowance
from tidemill.datalog.check import check
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.inputs import InputSchema, InputSchemas
from tidemill.datalog.parser import parse
from tidemill.datalog.presence import Presence
from tidemill.datalog.records import Record
from tidemill.datalog.why_not import why_not
from tidemill.errors import Exhausted, Unavailable
from tidemill.testkit.held import Held

MIB = 1 << 20
Run = Callable[[CheckedProgram, dict[str, list[Presence]], Allowance], int]


def program(text: str, kind: str = "int") -> CheckedProgram:
    columns = (("x", kind),)
    inputs = {name: InputSchema(name, "relation", columns) for name in ("a", "b")}  # type: ignore[arg-type]
    return check(parse(text), InputSchemas({each.name: each for each in inputs.values()}))


def numbers(rows: int) -> dict[str, list[Presence]]:
    return {
        name: [Presence(Record(name, (number,))) for number in range(rows)] for name in ("a", "b")
    }


def by_strata(checked: CheckedProgram, inputs: dict[str, list[Presence]], given: Allowance) -> int:
    return stepped(Held(checked, allowance=given), inputs)


def by_retraction(
    checked: CheckedProgram, inputs: dict[str, list[Presence]], given: Allowance
) -> int:
    return stepped(Held(checked, allowance=given, strategy="retraction"), inputs)


def stepped(held: Held, inputs: dict[str, list[Presence]]) -> int:
    held.feed(inputs)
    held.step(10)
    return len(held.records("p"))


STRATEGIES = pytest.mark.parametrize("run", [by_strata, by_retraction])


def allowed(most: int) -> Allowance:
    return Allowance(most, "limits.view_bytes", "view v")


@STRATEGIES
@pytest.mark.parametrize(
    "text",
    [
        "p(x, y) := a(x) ^ b(y);",
        "p(x, y) := a(x) ^ b(y) if x != y;",
        "p(x) @count(y) := a(x) ^ b(y);",
        "p(x, y) := a(x) ^ b(y); p(x, z) := p(x, y) ^ p(y, z);",
        "p(x, y) := a(x) ^ b(y) ^ not a(y + 2000);",
    ],
    ids=["cross", "guarded", "grouped", "recursive", "absent"],
)
def test_s7_a_cross_join_is_given_up_long_before_memory_is_gone(run: Run, text: str) -> None:
    checked = program(text)
    assert run(checked, numbers(20), allowed(64 * MIB)) >= 20
    inputs = numbers(1_500)
    tracemalloc.start()
    try:
        with pytest.raises(Exhausted, match=r"view v.*limits\.view_bytes") as caught:
            run(checked, inputs, allowed(4 * MIB))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert caught.value.setting == "limits.view_bytes"
    assert peak < 16 * MIB, f"{peak:,} bytes were held where 4 MiB were allowed"


@STRATEGIES
def test_s7_texts_that_rules_make_are_counted(run: Run) -> None:
    doubled = "concat(" + ", ".join(["x"] * 64) + ")"
    checked = program(f"p({doubled}) := a(x);", "text")
    texts = [f"{number:04}" + "x" * 500 for number in range(2_000)]
    inputs = {"a": [Presence(Record("a", (text,))) for text in texts]}
    assert run(checked, {"a": inputs["a"][:10]}, allowed(8 * MIB)) == 10
    with pytest.raises(Exhausted, match=r"limits\.view_bytes"):
        run(checked, inputs, allowed(8 * MIB))


@pytest.mark.parametrize("kind", ["max", "min"])
def test_s7_texts_that_are_put_in_order_are_counted(kind: str) -> None:
    checked = program(f"p() @{kind}(x) := a(x);", "text")
    texts = [f"{number:04}" + "x" * 4_000 for number in range(2_000)]
    inputs = {"a": [Presence(Record("a", (text,))) for text in texts]}
    assert by_strata(checked, inputs, allowed(16 * MIB)) == 1
    with pytest.raises(Exhausted, match=r"limits\.view_bytes"):
        by_strata(checked, inputs, allowed(6 * MIB))


def test_s7_what_is_gone_is_not_held_any_more() -> None:
    """An engine that steps for long holds what is there now, not all that ever was."""
    allowance = allowed(12 * MIB)
    held = Held(program("p(x, y) := a(x) ^ b(y);"), allowance=allowance)
    for at in range(60):
        for number in range(25):
            for name in ("a", "b"):
                held.update(name, Record(name, (1_000 * at + number,)), at, 1)
                held.update(name, Record(name, (1_000 * at + number,)), at + 1, -1)
        held.step(at + 1)
    assert len(held.records("p")) == 625
    assert allowance.held < 12 * MIB


def asked(checked: CheckedProgram, inputs: dict[str, list[Presence]], given: Allowance) -> int:
    """The absence of a record, never found out: each fact of `a` is tried with each of `b`."""
    text = "p(w) := a(x) ^ b(x + 100000) ^ a(w);"
    few = {name: presences[:6_000] for name, presences in inputs.items()}
    return len(why_not(program(text), few, Record("p", (1,)), 5, upper=10, allowance=given))


@pytest.mark.parametrize("run", [by_strata, by_retraction, asked])
def test_s9_an_evaluation_that_nobody_waits_for_ends(run: Run) -> None:
    """Nothing matches, so nothing is held: only the looks that it takes on its way end it."""
    checked = program("p(x, y) := a(x) ^ b(y) if abs(x - y) < 0;")
    given = allowed(1 << 40)
    inputs = numbers(20_000)
    with ThreadPoolExecutor(1) as threads:
        working = threads.submit(run, checked, inputs, given)
        with pytest.raises(TimeoutError):
            working.result(1)  # it would go on for many minutes
        given.call_off()
        with pytest.raises(Unavailable, match="nobody waits"):
            working.result(60)


def test_s7_within_its_allowance_an_evaluation_says_what_it_says_without_one() -> None:
    checked = program("p(x, y) := a(x) ^ b(y) if x < y;")
    for run in (by_strata, by_retraction):
        assert run(checked, numbers(60), allowed(32 * MIB)) == 60 * 59 // 2
