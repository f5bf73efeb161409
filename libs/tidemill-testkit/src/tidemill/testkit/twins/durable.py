"""Twin of a durable collection: every update ever written, and the rules read aloud."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tidemill.errors import (
    BeforeSince,
    CapabilityExpired,
    Corrupt,
    NotYet,
    UnknownCapability,
    UsageError,
)
from tidemill.shard import Appended, AppendOutcome, UpperMismatch
from tidemill.time import Frontier, frontier

Update = tuple[str, int, int]
"""Row, time, difference."""


@dataclass(slots=True)
class TwinHold:
    """A capability: its right, where it stands, and whether it is live, dropped or expired."""

    right: str
    held: Frontier
    life: str = "live"


@dataclass(slots=True)
class CollectionTwin:
    """One collection as its rules describe it, without storage, merging or races."""

    user_writable: bool
    allow_negative: bool = False
    since: Frontier = field(default_factory=lambda: frontier(0))
    upper: Frontier = field(default_factory=lambda: frontier(0))
    policy: Frontier | None = None
    updates: list[Update] = field(default_factory=list)
    holds: dict[str, TwinHold] = field(default_factory=dict)
    tokens: dict[str, tuple[str, Frontier]] = field(default_factory=dict)

    def settle(self) -> None:
        """Rules 1 and K2: since and upper go where the live capabilities and the policy let
        them.
        """
        writers = [hold.held for hold in self._live("write")]
        if writers:
            self.upper = later(self.upper, least(writers))
        limits = [hold.held for hold in self._live("read")]
        if self.policy is not None:
            limits.append(self.policy)
        if limits:
            self.since = later(self.since, least([*limits, self.upper]))

    def _live(self, right: str) -> list[TwinHold]:
        return [h for h in self.holds.values() if h.right == right and h.life == "live"]

    def hold(self, name: str, right: str) -> TwinHold:
        """The live capability of this name and right (rule 6)."""
        found = self.holds.get(name)
        if found is None or found.life == "dropped":
            raise UnknownCapability(name)
        if found.life == "expired":
            raise CapabilityExpired(name)
        if found.right != right:
            raise UsageError(name)
        return found

    def acquire(self, name: str, right: str) -> Frontier:
        """A new capability at since or upper."""
        held = self.since if right == "read" else self.upper
        self.holds[name] = TwinHold(right, held)
        self.settle()
        return held

    def clone(self, name: str, copy: str) -> Frontier:
        """A capability of the same right at the same frontier."""
        right = self.holds[name].right if name in self.holds else "read"
        held = self.hold(name, right).held
        self.holds[copy] = TwinHold(right, held)
        return held

    def downgrade(self, name: str, to: Frontier) -> Frontier:
        """Move a read capability."""
        found = self.hold(name, "read")
        if not found.held.precedes(to):
            raise UsageError(name)
        found.held = to
        self.settle()
        return to

    def end(self, name: str, life: str) -> None:
        """Drop or expire a capability."""
        right = self.holds[name].right if name in self.holds else "read"
        if life == "expired" and (name not in self.holds or self.holds[name].life != "live"):
            return
        self.hold(name, right).life = life
        if life == "dropped" and right == "write" and not self._live("write"):
            self.upper = frontier()
        self.settle()

    def retain(self, to: Frontier) -> None:
        """Set the policy frontier."""
        if self.policy is not None and not self.policy.precedes(to):
            raise UsageError("the policy goes back")
        self.policy = to
        self.settle()

    def append(
        self, lower: Frontier, new: Frontier, updates: list[Update], writer: str, token: str | None
    ) -> AppendOutcome:
        """Rule 3 with the collection's upper."""
        check(lower, new, updates)
        if self._live("write"):
            raise UsageError("held by writers")
        if token is not None and self.tokens.get(writer, ("", None))[0] == token:
            return Appended(self.tokens[writer][1])
        if lower != self.upper:
            return UpperMismatch(self.upper)
        return self._applied(new, updates, writer, token)

    def update(
        self, name: str, lower: Frontier, new: Frontier, updates: list[Update], token: str | None
    ) -> AppendOutcome:
        """Rule 3 with what a write capability holds."""
        found = self.hold(name, "write")
        check(lower, new, updates)
        if token is not None and self.tokens.get(name, ("", None))[0] == token:
            return Appended(self.tokens[name][1])
        if lower != found.held:
            return UpperMismatch(found.held)
        found.held = new
        return self._applied(new, updates, name, token if lower != new else None, own=True)

    def _applied(
        self,
        new: Frontier,
        updates: list[Update],
        writer: str,
        token: str | None,
        *,
        own: bool = False,
    ) -> AppendOutcome:
        self.updates += updates
        if not own:
            if new == self.upper:
                token = None
            self.upper = new
        if token is not None:
            self.tokens[writer] = (token, new)
        self.settle()
        return Appended(new)

    def contents(self, name: str, as_of: int) -> dict[str, int]:
        """Rule 2: what is there at a readable time."""
        self.hold(name, "read")
        if not self.since.less_equal(as_of):
            raise BeforeSince(name)
        if self.upper.less_equal(as_of):
            raise NotYet(name)
        counts: Counter[str] = Counter()
        for row, time, diff in self.updates:
            if time <= as_of:
                counts[row] += diff
        if not self.allow_negative and any(n < 0 for n in counts.values()):
            raise Corrupt(name)
        return {row: n for row, n in counts.items() if n}

    def changes(self, name: str, lower: int, upper: int) -> dict[tuple[str, int], int]:
        """The updates at lower <= time < upper, where since has not passed lower."""
        self.hold(name, "read")
        if not self.since.less_equal(lower):
            raise BeforeSince(name)
        if upper > 0 and self.upper.less_equal(upper - 1):
            raise NotYet(name)
        return self.between(lower, upper)

    def between(self, lower: int, upper: int | None) -> dict[tuple[str, int], int]:
        """The visible updates at lower <= time < upper, added up."""
        counts: Counter[tuple[str, int]] = Counter()
        for row, time, diff in self.updates:
            visible = not self.upper.less_equal(time)
            if visible and lower <= time and (upper is None or time < upper):
                counts[row, time] += diff
        return {key: n for key, n in counts.items() if n}


def check(lower: Frontier, new: Frontier, updates: list[Update]) -> None:
    """The order in which bad bounds are found."""
    if not lower.precedes(new):
        raise UsageError("bounds", reason="InvalidBounds")
    if lower == new and updates:
        raise UsageError("bounds", reason="InvalidEmptyTimeInterval")
    if any(not lower.less_equal(time) for _, time, _ in updates):
        raise UsageError("bounds", reason="UpdateNotBeyondLower")
    if any(new.less_equal(time) for _, time, _ in updates):
        raise UsageError("bounds", reason="UpdateBeyondUpper")


def least(frontiers: list[Frontier]) -> Frontier:
    """The meet of totally ordered frontiers."""
    return min(frontiers, key=lambda held: held.elements[0] if held.elements else 2**64)


def later(a: Frontier, b: Frontier) -> Frontier:
    """The join of totally ordered frontiers."""
    return a if b.precedes(a) else b
