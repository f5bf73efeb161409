"""Unforeseen errors without their content: class of the error, and place where it was raised.

The text of a foreign error may hold rows or secrets of users, so it goes into no status and no log.
"""

from __future__ import annotations

import asyncio
import traceback

from tidemill.errors import TidemillError

OURS = "tidemill"


def unforeseen(error: BaseException) -> BaseException | None:
    """The error, or the first one in a group, that nobody foresaw; None if all are foreseen.

    Errors of our tree and cancellations are foreseen.
    """
    if isinstance(error, BaseExceptionGroup):
        found = (unforeseen(each) for each in error.exceptions)
        return next((each for each in found if each is not None), None)
    foreseen = isinstance(error, TidemillError | asyncio.CancelledError)
    return None if foreseen else error


def shown(error: BaseException) -> str:
    """The message of an error of ours; class and place of a foreign one."""
    return str(error) if isinstance(error, TidemillError) else told(error)


def trace(error: BaseException) -> str:
    """A traceback of an error and of what caused it, in which only errors of ours say their
    text.
    """
    return "\n".join(_traced(error, set()))


def _traced(error: BaseException, seen: set[int]) -> list[str]:
    seen.add(id(error))
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    lines = []
    if cause is not None and id(cause) not in seen:
        lines = [*_traced(cause, seen), "", "which led to:", ""]
    lines += ["Traceback (most recent call last):"]
    lines += [line.rstrip("\n") for line in traceback.format_tb(error.__traceback__)]
    said = f": {error}" if isinstance(error, TidemillError) else ""
    lines.append(f"{type(error).__module__}.{type(error).__qualname__}{said}")
    for inner in error.exceptions if isinstance(error, BaseExceptionGroup) else ():
        if id(inner) not in seen:
            lines += [f"  | {line}" for line in _traced(inner, seen)]
    return lines


def told(error: BaseException) -> str:
    """Class and place of an error:
    `ValueError in json.decoder:355 below tidemill_compute.views.view:120`.

    The place is where it was raised; if that is not in our own code, also where ours went there.
    """
    found = unforeseen(error) or error
    frames = [
        (str(frame.f_globals.get("__name__", "?")), line)
        for frame, line in traceback.walk_tb(found.__traceback__ or error.__traceback__)
    ]
    name = type(found).__name__
    if not frames:
        return name
    ours = [frame for frame in frames if frame[0].startswith(OURS)]
    places = dict.fromkeys(f"{module}:{line}" for module, line in [frames[-1], *ours[-1:]])
    return f"{name} in {' below '.join(places)}"
