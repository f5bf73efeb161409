"""Rest: collections that nobody writes to follow the upper of another one, their pace, together.

One commit to their pace then advances a thousand idle sources. A collection begins to rest with a
version of its own that names the pace. It follows from the pace's statement that it does to the
statement that it has left, with all others of its group at one upper. Nobody commits to a
collection at rest before its group has left. So all events have one order, that of the log of the
pace. A reader of first the collection and then its pace knows the definite frontier.

A table has a write capability of its own, whose holder would only move it on. It goes with the
pace: its frontier is that of the pace until somebody writes.

Outputs that change only where their inputs do follow *under* the groups of these inputs. A group
that leaves takes the groups under it along, at the same upper: no output is ever further than its
inputs.

Inputs of one output may follow several paces, such as those of tables and of sources. Its version
then names all of these, and its upper is the meet of what each of them says. It follows in each
under the inputs that are there. A pace that it has left says how far it was moved there. So the
meet stays true while it follows in the others. Only a version that has left all of them is settled,
and is followed by another one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tidemill.errors import UsageError
from tidemill.shard.state import Paced, State, at_upper
from tidemill.shard.transitions import live_write
from tidemill.time import Frontier, frontier

AS_WRITTEN = frontier(0)
"""Leaving frontier of a version that never followed: its own upper is later."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A version as its paces say it is: `settled` if no commit to them can move it any more."""

    state: State
    settled: bool


def about(pace: State, collection: str, number: int) -> Paced | None:
    """The statement of a pace about that version; None if there is none, or about another one."""
    said = pace.paced.get(collection)
    return said if said is not None and said.number == number else None


def follows(pace: State, collection: str, number: int) -> bool:
    """Whether that version follows the pace, and so is the newest one."""
    said = about(pace, collection, number)
    return said is not None and said.left is None


def shown(state: State, collection: str, number: int, paces: Sequence[State]) -> Shown | None:
    """The meaning of a version that names these paces; None if one knows of a later version.

    Its frontiers are those that it would have if its upper had been written there. It rests until
    it has left one of them; then others may move it as far as where it left, and no further.
    """
    uppers: list[Frontier] = []
    rests, settled = True, True
    for pace in paces:
        later = pace.paced.get(collection)
        if later is not None and later.number > number:
            return None
        said = about(pace, collection, number)
        left = None if said is None else said.left
        moved = state.upper if said is None else pace.upper if left is None else left
        # A pace that was closed says nothing: what follows it stands, and is not closed by that.
        uppers.append(state.upper if moved.empty else moved)
        rests, settled = rests and left is None, settled and left is not None
    state = _at(state, frontier(*(time for upper in uppers for time in upper)))
    return Shown(state if rests else replace(state, paces=(), carried=""), settled)


def _at(state: State, upper: Frontier) -> State:
    if upper.empty or upper.precedes(state.upper):
        return state
    if state.carried:
        moved = replace(state.writes[state.carried], frontier=upper)
        state = replace(state, writes={state.carried: moved})
    return at_upper(state, upper, "the retention policy")


def following(
    state: State, paces: tuple[str, ...], expected: Frontier, writer: str = ""
) -> tuple[bool, State]:
    """A version that may follow `paces`, if upper is where it is expected: whether it is.

    `writer` is the write capability of who asks. It goes along, as if its holder had moved it, if
    no other one is live and it has no lease. Raises: the errors of a capability that is not live.
    Without one: UsageError if the collection has writers of its own or its upper is no instant.
    """
    if writer:
        hold = live_write(state, writer)
        if len(state.writes) > 1 or state.staged or hold.lease_ms is not None:
            return False, state
    elif state.description.user_writable or state.writes or state.staged or state.upper.empty:
        raise UsageError(
            "rest refused: upper is not moved by internal writers alone", reason="HeldByWriters"
        )
    if state.upper != expected:
        return False, state
    if (state.paces, state.carried) == (paces, writer):
        return True, state
    return True, replace(state, paces=paces, carried=writer)


def roused(state: State) -> tuple[None, State]:
    """The collection does not rest any more; nothing else changes."""
    return None, replace(state, paces=(), carried="") if state.paces else state


def leaving(pace: State, collection: str, number: int) -> tuple[None, State]:
    """That version has left with its group where the pace is now; if it never joined it never
    will.
    """
    said = pace.paced.get(collection)
    if said is None or said.number < number:
        stays = Paced(number, "", AS_WRITTEN)
        return None, replace(pace, paced={**pace.paced, collection: stays})
    if said.number > number or said.left is not None:
        return None, pace
    return None, _left(pace, {said.group})


def _left(pace: State, groups: Iterable[str]) -> State:
    """These groups, and all that follow under any of them, stay where the pace is now."""
    leaving, known = set(groups), -1
    while len(leaving) > known:
        known = len(leaving)
        leaving |= {each for each, over in pace.under.items() if not leaving.isdisjoint(over)}
    left = {
        name: replace(said, left=pace.upper)
        for name, said in pace.paced.items()
        if said.left is None and said.group in leaving
    }
    if not left:
        return pace
    under = {group: over for group, over in pace.under.items() if group not in leaving}
    return replace(pace, paced={**pace.paced, **left}, under=under)


def groups_of(pace: State, numbers: Mapping[str, int]) -> frozenset[str] | None:
    """The groups of these versions; None if any of them does not follow."""
    said = [(pace.paced.get(name), number) for name, number in numbers.items()]
    if any(each is None or each.number != n or each.left is not None for each, n in said):
        return None
    return frozenset(each.group for each, _ in said if each is not None)


def joined_under(
    pace: State, group: str, numbers: Mapping[str, int], inputs: Mapping[str, int]
) -> tuple[bool, State]:
    """The group of these versions follows for as long as the versions `inputs` do; whether it does.

    The caller knows that the group, at one upper, has everything that the inputs ever wrote.
    """
    over = groups_of(pace, inputs)
    if not over or not all(_may_join(pace.paced.get(name), n) for name, n in numbers.items()):
        return False, pace
    said = {name: Paced(number, group) for name, number in numbers.items()}
    under = {**pace.under, group: tuple(sorted(over))}
    return True, replace(pace, paced={**pace.paced, **said}, under=under)


def stepped(
    pace: State,
    upper: Frontier,
    joining: Mapping[str, Mapping[str, int]],
    leave: Iterable[str],
    gone: Iterable[str] = (),
) -> tuple[frozenset[str], State]:
    """One step: groups leave, others join, upper advances; the groups that follow afterwards.

    `joining` are the versions of each group, which had one upper. A group of which a version has
    left, since it was written again, does not join. A statement about a version thus stays until a
    later one follows, or the collection is `gone`. Upper stays if `upper` is not beyond it. Then
    nothing joins a pace that is further: a clock that was wrong took it there. Cost: O(all that is
    paced).
    """
    pace = _left(pace, set(leave))
    closed = set(gone)
    paced = {name: said for name, said in pace.paced.items() if name not in closed}
    for group, numbers in joining.items() if pace.upper.precedes(upper) else ():
        if all(_may_join(paced.get(name), number) for name, number in numbers.items()):
            paced |= {name: Paced(number, group) for name, number in numbers.items()}
    following_now = frozenset(said.group for said in paced.values() if said.left is None)
    if paced != pace.paced:
        under = {group: over for group, over in pace.under.items() if group in following_now}
        pace = replace(pace, paced=paced, under=under)
    if following_now and pace.upper.precedes(upper) and pace.upper != upper:
        pace = at_upper(pace, upper, "pace")
    return following_now, pace


def _may_join(said: Paced | None, number: int) -> bool:
    return said is None or said.number < number or (said.number == number and said.left is None)


STILL_MIN, STILL_MAX = 3, 256
"""Intervals without news after which a rest begins; more of them, if others keep it from that."""

LONG = 64
"""A rest of so many intervals was worth its commits."""


@dataclass(slots=True)
class Patience:
    """Tells when a rest is worth its commits: later and later, while others cut rests short."""

    intervals: int = STILL_MIN
    _still: int = 0

    def due(self, news: bool) -> bool:
        """Whether nothing has come for long enough. To be told of each interval."""
        self._still = 0 if news else self._still + 1
        return self._still >= self.intervals

    def begun(self) -> None:
        """A rest is tried: intervals are counted anew."""
        self._still = 0

    def ended(self, intervals: int, news: bool) -> None:
        """A rest of so many intervals (0: none began) has ended, by news or for another reason."""
        worth = news or intervals >= LONG
        self.intervals = STILL_MIN if worth else min(2 * self.intervals, STILL_MAX)
