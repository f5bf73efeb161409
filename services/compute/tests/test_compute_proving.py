"""Proofs in messages: each firing has its own, cut to some lines, and none of them holds it up."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill_compute.actions.outbox import Firing, Took, untold
from tidemill_compute.actions.proving import (
    AT_ONCE,
    LINE_CHARS,
    PROOF_LINES,
    ProvingSink,
    shortened,
)


class Taking:
    """A sink that keeps its calls."""

    at_most_once = True

    def __init__(self) -> None:
        self.calls: list[list[Firing]] = []

    async def recover(self, doubtful: Sequence[Firing]) -> frozenset[str]:
        return frozenset(each.key for each in doubtful)

    async def fire(self, firings: Sequence[Firing], took: Took = untold) -> None:
        self.calls.append([*firings])
        took(firings)

    async def close(self) -> None:
        """Nothing is open."""


class Known:
    """Proofs that are asked for once each."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def text_of(self, firing: Firing) -> str:
        self.asked.append(firing.key)
        return f"because of {firing.key}"


async def test_firings_are_told_with_their_proofs_a_few_at_a_time() -> None:
    inner, proofs, took = Taking(), Known(), list[str]()
    sink = ProvingSink(inner, proofs)
    due = [Firing(str(n), "tell", n, "r", "[]", None) for n in range(2 * AT_ONCE + 1)]
    await sink.fire(due, lambda told: took.extend(each.key for each in told))
    assert [len(call) for call in inner.calls] == [AT_ONCE, AT_ONCE, 1]
    assert all(each.proof == f"because of {each.key}" for call in inner.calls for each in call)
    assert took == proofs.asked == [each.key for each in due]
    # An alert that is told again has the proof that it had.
    await sink.fire(inner.calls[0])
    assert len(proofs.asked) == len(due)
    assert sink.at_most_once
    assert await sink.recover(due[:1]) == {"0"}


def test_a_long_proof_is_cut_and_says_how_to_ask_for_all_of_it() -> None:
    assert shortened("a\nb", "ask") == "a\nb"
    lines = shortened("\n".join(["x" * 2 * LINE_CHARS] * (PROOF_LINES + 3)), "ask").splitlines()
    assert len(lines) == PROOF_LINES + 1
    assert lines[0] == "x" * LINE_CHARS + "…"
    assert lines[-1] == "… 3 more lines: ask"
