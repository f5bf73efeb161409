"""Errors, named by what the caller does next.

* TidemillError
  * UsageError           fix the call; a retry fails the same way
    * AlreadyUsed        the id is or was bound; choose another
    * UnknownCollection  the id was never bound
    * UnknownCapability  dropped, or never issued
    * Unauthenticated    nobody knows who calls; give a token, or a certificate
    * Denied             the caller may not do that; ask for a grant
  * BeforeSince          the time is no longer distinguishable; choose a later one
  * NotYet               the time is not sealed; wait
  * Fenced               this handle is dead; open a new one
    * CapabilityExpired  the lease ran out; acquire again
  * DeadlinePassed       the time for it is over; ask again, with more time
  * CutOff               the subscriber was too slow; subscribe again from `resume_at`
  * Unavailable          it did not happen; retry with backoff
    * Exhausted          a limit of the server is reached; ask for less at once, later
  * Indeterminate        it may have happened; retry only what is idempotent
  * Corrupt              stored bytes or contents are wrong; stop and page someone

Details are fields, given by keyword: both frontiers, the collection, the holder.
"""

from __future__ import annotations


class TidemillError(Exception):
    """Root of every error that Tidemill raises on purpose; `details` holds the values involved."""

    def __init__(self, message: str, /, **details: object) -> None:
        super().__init__(message)
        self.message = message
        self.details = details

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return self.__dict__["details"][name]
        except KeyError:
            raise AttributeError(name) from None

    def __str__(self) -> str:
        return self.message


class UsageError(TidemillError, ValueError):
    """The call is wrong; a retry fails the same way. `reason` names the rule that was broken."""


class AlreadyUsed(UsageError):
    """The id is or was bound; choose another."""


class UnknownCollection(UsageError):
    """The id was never bound; name one that is listed."""


class UnknownCapability(UsageError):
    """The capability was dropped, or never issued."""


class Unauthenticated(UsageError):
    """Nobody knows who calls; give a token, or a certificate."""


class Denied(UsageError):
    """The caller may not do that; ask for a grant."""


class BeforeSince(TidemillError):
    """The time is no longer distinguishable; choose a later one."""


class NotYet(TidemillError):
    """The time is not sealed; wait."""


class Fenced(TidemillError):
    """This handle is dead; open a new one."""


class CapabilityExpired(Fenced):
    """The lease ran out; acquire again."""


class DeadlinePassed(TidemillError):
    """The time that the caller gave is over; nothing was written. Ask again, with more time."""


class CutOff(TidemillError):
    """The subscriber was too slow; subscribe again from `resume_at`."""


class Unavailable(TidemillError):
    """It did not happen; retry with backoff."""


class Exhausted(Unavailable):
    """A limit of the server is reached; ask for less at once, later. `setting` names the limit."""


class Indeterminate(TidemillError):
    """It may have happened; retry only what is idempotent."""


class Corrupt(TidemillError):
    """Stored bytes or contents are wrong; stop and page someone."""
