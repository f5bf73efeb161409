"""Targets that fail as real ones might, to see that it is found."""

from __future__ import annotations

import faulthandler
import os
import signal

from tidemill.testkit.fuzzing.running import Target


def _dies(data: bytes) -> None:
    if b"\xff" in data:
        faulthandler.disable()  # it is meant: nobody has to see where
        os.kill(os.getpid(), signal.SIGSEGV)


def _raises(data: bytes) -> None:
    if len(data) > 12:
        raise ZeroDivisionError("planted")
    raise ValueError("as it may")


PLANTED = (
    Target("planted-crash", (b"good",), _dies),
    Target("planted-exception", (b"good",), _raises, (ValueError,)),
)
