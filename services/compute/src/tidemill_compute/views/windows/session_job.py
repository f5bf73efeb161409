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
from tidemill_compute.views.windows.crew import Crew, cores_each, cores_of, keep
from tidemill_compute.views.windows.mailbox import (
    DONE,
    END,
    FAILED,
    PAUSE_S,
    PAUSE_S_MAX,
    STAY,
    SessionSpec,
    asked_key,
    asked_number,
    told_key,
)
from tidemill_compute.views.windows.spec import unpack_window
from tidemill_compute.views.windows.window_job import groups_for
from tidemill_compute.views.windows.window_job import run as evaluate_window

LOOK_S = 10.0
"""Seconds between two looks for later questions: those that were answered are gone."""
AT_ONCE = 8
"""Windows that one session has under way, each of another view."""


def run(packed: bytes, here: Workplace) -> bytes:
    """Answer until nobody asks any more."""
    told = msgspec.msgpack.decode(packed, type=SessionSpec)
    blob = open_blob(here.blob, partial(token_hex, 16))
    here.say(f"waiting for windows in {told.folder}")
    clock = SystemClock()
    crew = Crew(clock, cores_each(here.spark))
    evaluate, count = partial(_window, here, crew), lambda: keep(here.spark, crew.wanted)
    asyncio.run(serve(told, blob, clock, evaluate, count))
    return b""


async def serve(
    told: SessionSpec, blob: StoredBlob, clock: Clock, evaluate: Callable[[bytes], bytes],
    count: Callable[[], int],
) -> None:  # fmt: skip
    """Answer questions in the order of their numbers, several at once, until idle.

    The answer to a heartbeat is the number of executors, which `count` gives. A driver that begins
    where another was killed goes on with the questions that are there.
    """
    number, pause_s = 1, PAUSE_S
    asked_s, looked_s = clock.monotonic_s(), float("-inf")
    with ThreadPoolExecutor(AT_ONCE) as threads:
        while (now_s := clock.monotonic_s()) - asked_s < told.idle_s:
            question = await blob.get(asked_key(told.folder, number))
            if question is None and now_s - looked_s >= LOOK_S:
                number, looked_s = await _next_asked(told.folder, number, blob), now_s
                continue
            if question is None:
                await clock.sleep(pause_s)
                pause_s = min(PAUSE_S_MAX, 1.05 * pause_s)
                continue
            asked_s = now_s
            if question == END:
                return
            put = partial(blob.put_now, told_key(told.folder, number))
            if question == STAY:
                threads.submit(_answer, lambda _: b"%d" % count(), question, put)
            else:
                pause_s = PAUSE_S
                threads.submit(_answer, evaluate, question, put)
            number += 1


async def _next_asked(folder: str, number: int, blob: StoredBlob) -> int:
    """The least number of a question from `number` on; that itself if there is none.

    A listing may miss what is put meanwhile and have what is put after that. A second one has all
    that was asked before.
    """
    least = number
    for _ in range(2):
        asked = [asked_number(each.key) for each in await blob.list(f"{folder}/")]
        least = min((each for each in asked if each >= number), default=number)
        if least == number:
            break
    return least


def _answer(
    evaluate: Callable[[bytes], bytes], question: bytes, put: Callable[[bytes], None]
) -> None:
    try:
        found = DONE + evaluate(question)
    except Exception as error:  # whatever it raises is the answer to this question alone
        found = FAILED + f"{type(error).__name__}: {error}".encode()
    put(found)


def _window(here: Workplace, crew: Crew, question: bytes) -> bytes:
    crew.take(groups_for(unpack_window(question), cores_of(here.spark)))
    try:
        return evaluate_window(question, here)
    except Exception as error:
        here.say(f"failed: {error}")
        raise
