"""Appends and merges as pure functions: (state, command) → (answer, next state)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tidemill.errors import Unavailable, UsageError
from tidemill.shard.capabilities import Appended, AppendOutcome, UpperMismatch
from tidemill.shard.listed import PartList, listed_ms
from tidemill.shard.parts import Part
from tidemill.shard.state import (
    TOKENS_KEPT_MAX,
    Batch,
    Hold,
    LastWrite,
    State,
    at_upper,
    given_up_ms,
    settle,
)
from tidemill.shard.transitions import live_write, renewed
from tidemill.time import Frontier


@dataclass(frozen=True, slots=True)
class Write:
    """Content of an append: its written parts, the span of all given times, and a unique name.

    `times` is None if there were no updates; it counts updates that cancel too.
    """

    parts: tuple[Part, ...]
    times: tuple[int, int] | None
    name: str


def check_bounds(lower: Frontier, new: Frontier, times: tuple[int, int] | None) -> None:
    """Every time is at or after lower and before new (UP2).

    Raises UsageError with the rule broken.
    """
    if not lower.precedes(new):
        raise UsageError(
            f"append refused: the new upper {new} is not beyond the lower {lower}",
            reason="InvalidBounds", lower=lower, upper=new,
        )  # fmt: skip
    if times is None:
        return
    if lower == new:
        raise UsageError(
            f"append refused: updates in the empty interval [{lower}, {new})",
            reason="InvalidEmptyTimeInterval", lower=lower, upper=new,
        )  # fmt: skip
    least, greatest = times
    if not lower.less_equal(least):
        raise UsageError(
            f"append refused: the time {least} is not beyond the lower {lower}",
            reason="UpdateNotBeyondLower", lower=lower, upper=new, time=least,
        )  # fmt: skip
    if new.less_equal(greatest):
        raise UsageError(
            f"append refused: the time {greatest} is beyond the new upper {new}",
            reason="UpdateBeyondUpper", lower=lower, upper=new, time=greatest,
        )  # fmt: skip


def append(
    state: State,
    expected: Frontier,
    new: Frontier,
    write: Write,
    writer: str,
    token: str | None = None,
    now_ms: int = 0,
) -> tuple[AppendOutcome, State]:
    """Compare-and-append on the collection's upper, for internal writers (UP1, UP5, UP6).

    Raises: UsageError, also while write capabilities are live: upper is theirs (K2).
    """
    check_bounds(expected, new, write.times)
    if state.writes:
        raise UsageError(
            "append refused: write capabilities of this collection are live, and upper is theirs",
            reason="HeldByWriters", upper=state.upper,
        )  # fmt: skip
    known = _already_done(state, writer, token)
    if known is not None:
        return known, state
    if expected != state.upper:
        return UpperMismatch(state.upper), state
    if expected == new:
        return Appended(new), state
    _check_kept(state, write.parts)
    staged = replace(
        state,
        staged=_with_parts(state.staged, write),
        last_writes=_with_token(state.last_writes, writer, token, new),
    )
    return Appended(new), at_upper(staged, new, f"append by {writer}", now_ms)


def update(
    state: State,
    capability: str,
    stated: Frontier,
    new: Frontier,
    write: Write,
    token: str | None = None,
    now_ms: int = 0,
    body: str = "",
) -> tuple[AppendOutcome, State]:
    """UpdateAndDowngrade: compare-and-append on what this write capability holds (UP1–UP6, K2, K6).

    Every success begins the lease anew, also one that writes nothing and goes nowhere (K11). `body`
    tells what is written from other updates. Raises: UsageError (TokenUsed) for a token that came
    with another one.
    """
    hold = live_write(state, capability)
    check_bounds(stated, new, write.times)
    writer = _writer_of(capability, hold, token)
    known = _already_done(state, writer, token, body)
    if known is not None:
        return known, state
    if stated != hold.frontier:
        return UpperMismatch(hold.frontier), state
    if stated == new:
        kept = renewed(hold, now_ms)
        if kept is hold:
            return Appended(new), state
        return Appended(new), replace(state, writes={**state.writes, capability: kept})
    _check_kept(state, write.parts)
    moved = replace(renewed(hold, now_ms), frontier=new, moved_ms=now_ms)
    staged = replace(
        state,
        writes={**state.writes, capability: moved},
        staged=_with_parts(state.staged, write),
        last_writes=_with_token(state.last_writes, writer, token, new, body),
    )
    return Appended(new), settle(staged, f"update by {hold.owner or 'a writer'}", now_ms)


def _check_kept(state: State, parts: Sequence[Part]) -> None:
    """Raises Unavailable if the reaper may have taken an object before it was named (P8)."""
    if _may_be_reaped(state, parts):
        raise Unavailable(
            "append not done: its objects were begun longer ago than orphans are kept; write them anew"
        )


def _may_be_reaped(state: State, parts: Sequence[Part | PartList]) -> bool:
    return any(part.begun_ms < state.reaped_ms for part in parts if part.begun_ms is not None)


def _with_parts(
    staged: Mapping[str, tuple[Part, ...]], write: Write
) -> Mapping[str, tuple[Part, ...]]:
    return {**staged, write.name: write.parts} if write.parts else staged


def answered(state: State, capability: str, token: str | None, body: str = "") -> Appended | None:
    """The earlier answer to an update with this token, if it is remembered (UP6).

    Raises: UsageError.
    """
    hold = state.writes.get(capability)
    if hold is None:
        return None
    return _already_done(state, _writer_of(capability, hold, token), token, body)


def _writer_of(capability: str, hold: Hold, token: str | None) -> str:
    """Whose last token it is: each request of its own where many use one capability (UP6)."""
    return f"{capability} {token}" if hold.named and token is not None else capability


def _already_done(state: State, writer: str, token: str | None, body: str = "") -> Appended | None:
    last = state.last_writes.get(writer)
    if token is None or last is None:
        return None
    if last.token in (token, _remembered(token, body)):
        return Appended(last.upper)
    if body and last.token.startswith(_remembered(token, "")):
        raise UsageError(
            "append refused: its token came with other updates before; a token is for one request, and "
            "for its repetitions as they were",
            reason="TokenUsed",
        )
    return None


def _remembered(token: str, body: str) -> str:
    return f"{token}\0{body}"


def _with_token(
    known: Mapping[str, LastWrite], writer: str, token: str | None, upper: Frontier, body: str = ""
) -> Mapping[str, LastWrite]:
    if token is None:
        return known
    requests = [name for name in known if " " in name] if len(known) >= TOKENS_KEPT_MAX else []
    oldest = set(requests[: len(requests) + 1 - TOKENS_KEPT_MAX])
    kept = {name: last for name, last in known.items() if name not in oldest} if oldest else known
    return {**kept, writer: LastWrite(_remembered(token, body) if body else token, upper)}


@dataclass(frozen=True, slots=True)
class Merged:
    """The result of a merge: `batch` has the updates of `replaced`, adjacent batches, advanced."""

    replaced: tuple[Batch, ...]
    batch: Batch


def apply_merge(state: State, merged: Merged, now_ms: int = 0) -> tuple[bool, State]:
    """Put a merged batch in place of those it was made of iff they are all still there (P6, F6).

    Objects that no batch names any more become garbage. A late result is refused: a replaced batch
    has changed, or the merge took so long that its own objects may have been reaped.
    """
    replaced = merged.replaced
    places = [at for at, batch in enumerate(state.batches) if batch.lower == replaced[0].lower]
    if not places:
        return False, state
    start, stop = places[0], places[0] + len(replaced)
    present = state.batches[start:stop]
    unchanged = [batch.pieces for batch in present] == [batch.pieces for batch in replaced]
    since_allows = state.since.empty or merged.batch.compacted < max(1, *state.since.elements)
    too_late = not unchanged or _may_be_reaped(state, merged.batch.pieces)
    if too_late or not since_allows or state.closed:
        return False, state
    after = replace(state, batches=(*state.batches[:start], merged.batch, *state.batches[stop:]))
    named = after.objects()
    dropped = sorted(
        piece.key
        for each in present
        for piece in each.pieces
        if piece.key and piece.key not in named
    )
    given_up = dict.fromkeys(dropped, given_up_ms(state, now_ms))
    return True, replace(after, garbage={**state.garbage, **given_up})


def put_in_lists(state: State, batch: Batch, listed: Batch) -> tuple[bool, State]:
    """Put a batch whose parts are in lists in place of it iff it is still there.

    Refused if a list may have been reaped before it was named.
    """
    begun = [each for one in listed.lists if (each := listed_ms(one)) is not None]
    if batch not in state.batches or min(begun, default=0) < state.reaped_ms:
        return False, state
    batches = tuple(listed if each == batch else each for each in state.batches)
    return True, replace(state, batches=batches)


def reap(state: State, before_ms: int) -> State:
    """Advance the horizon: an object begun before it and named by no version never will be named.

    The result always differs from `state`, so that a writer about to name an object looks again.
    """
    return replace(state, reaped_ms=max(before_ms, state.reaped_ms + 1))


def forget_garbage(state: State, keys: set[str]) -> State:
    """These objects are deleted."""
    kept = {key: at_ms for key, at_ms in state.garbage.items() if key not in keys}
    return state if len(kept) == len(state.garbage) else replace(state, garbage=kept)
