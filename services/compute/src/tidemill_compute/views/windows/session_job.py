"""A job that stays: it evaluates one window after the other in one session, until idle.

Windows are asked for by objects in a folder of its own, one number after the other. A writer of the
bucket can ask for nothing but windows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from secrets import token_hex

import msgspec

from tidemill.runtime.clock import Clock, SystemClock
from tidemill.shard.stores import StoredBlob, open_blob
from tidemill.spark.workplace import Workplace
from tidemill_compute.views.windows.mailbox import (
    DONE,
    END,
    FAILED,
    PAUSE_S,
    PAUSE_S_MAX,
    STAY,
    SessionSpec,
    asked_key,
    told_key,
)
from tidemill_compute.views.windows.window_job import run as evaluate_window

AT_ONCE = 8
"""Windows that one session has under way, each of another view."""


def run(packed: bytes, here: Workplace) -> bytes:
    """Answer until nobody asks any more."""
    told = msgspec.msgpack.decode(packed, type=SessionSpec)
    blob = open_blob(here.blob, partial(token_hex, 16))
    here.say(f"waiting for windows in {told.folder}")
    asyncio.run(serve(told, blob, SystemClock(), partial(_window, here)))
    return b""


async def serve(
    told: SessionSpec, blob: StoredBlob, clock: Clock, evaluate: Callable[[bytes], bytes]
) -> None:
    """Answer questions in the order of their numbers, several at once, until idle."""
    number, asked_s, pause_s = 1, clock.monotonic_s(), PAUSE_S
    with ThreadPoolExecutor(AT_ONCE) as threads:
        while clock.monotonic_s() - asked_s < told.idle_s:
            question = await blob.get(asked_key(told.folder, number))
            if question is None:
                await clock.sleep(pause_s)
                pause_s = min(PAUSE_S_MAX, 1.05 * pause_s)
                continue
            asked_s = clock.monotonic_s()
            if question == END:
                return
            if question != STAY:
                pause_s = PAUSE_S
                key = told_key(told.folder, number)
                threads.submit(_answer, evaluate, question, partial(blob.put_now, key))
            number += 1


def _answer(
    evaluate: Callable[[bytes], bytes], question: bytes, put: Callable[[bytes], None]
) -> None:
    try:
        found = DONE + evaluate(question)
    except Exception as error:  # whatever it raises is the answer to this question alone
        found = FAILED + f"{type(error).__name__}: {error}".encode()
    put(found)


def _window(here: Workplace, question: bytes) -> bytes:
    try:
        return evaluate_window(question, here)
    except Exception as error:
        here.say(f"failed: {error}")
        raise
