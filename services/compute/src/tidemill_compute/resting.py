"""Rest of what is derived: outputs that follow their inputs while all of these rest."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.errors import Indeterminate, Unavailable
from tidemill.shard import Collections
from tidemill.shard.offloading import first_of
from tidemill.shard.pacing import Patience
from tidemill.time import Frontier

LOOKS = 12
"""So many pauses at rest have one step, which moves what is held."""


class Rest:
    """Rest of the outputs of one resource, under the rest of its inputs.

    A writer of an input makes the outputs leave with it, at one upper, before it writes. So an
    output is complete as far as its inputs are. At rest a step of the resource finds nothing to
    write. So none is needed until one of them is written, or held anew.
    """

    def __init__(
        self, group: str, written: Sequence[str], read: Sequence[str], collections: Collections
    ) -> None:
        """`group` is a name that no other group of any pace has."""
        self._group = group
        self._written = tuple(written)
        self._read = tuple(read)
        self._collections = collections
        self._patience = Patience()
        self._steps: int | None = None
        """Steps and pauses since the rest began; None without a rest."""
        self._looks = 0

    async def follow(self, upper: Frontier, changed: bool) -> None:
        """Begin, or notice the end of, a rest. To be told of each step, once it is written.

        Cost: a look at the store; when a rest begins, a commit for each output and one more.
        """
        try:
            await self._follow(upper, changed)
        except (Unavailable, Indeterminate):  # the step is written: the next one finds out
            return

    async def wait_for_news(self, pause_s: float) -> Frontier | None:
        """Return once an input or an output rests no more, at the latest after `pause_s`.

        The upper that the outputs have at rest; None if there may be something to do. So it is
        after every `LOOKS` pauses, and at once without a rest. Cost: a look at their pace for each.
        """
        if self._steps is None:
            return None
        self._looks = (self._looks + 1) % LOOKS
        over, watched = self._collections.rest_over, (*self._read, *self._written)
        try:
            await first_of([over(each, pause_s) for each in watched])
            if not self._looks or not await self._collections.rests(self._written[0]):
                return None
            self._steps += 1
            return (await self._collections.status(self._written[0])).upper
        except (Unavailable, Indeterminate):  # the next step finds out
            return None

    async def _follow(self, upper: Frontier, changed: bool) -> None:
        if self._steps is not None:
            if not changed and await self._collections.rests(self._written[0]):
                self._steps += 1
                return
            self._patience.ended(self._steps, news=changed)
            self._steps = None
        if not self._patience.due(changed):
            return
        self._patience.begun()
        follows = await self._collections.follow_under(
            self._group, self._written, self._read, upper
        )
        if follows:
            self._steps = 0
        elif follows is not None:
            self._patience.ended(0, news=False)
