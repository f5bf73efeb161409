"""Consensus in one SQLite file: many processes on one machine."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tidemill.errors import Corrupt, Indeterminate, TidemillError, Unavailable
from tidemill.shard.ports import Attempt, Expected, Version
from tidemill.shard.sqlite_file import (
    CHECKPOINT_BYTES,
    FAILURES,
    LAST_COMMIT_BYTES,
    all_keys,
    as_ours,
    copy_log,
    insert,
    is_newest,
    lengthen_log,
    log_bytes,
    open_file,
    tell,
    told_file,
    versions_from,
)

T = TypeVar("T")

BUSY_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class _Waiting:
    """Attempts that are decided as one, and who waits for their outcome."""

    attempts: Sequence[Attempt]
    loop: asyncio.AbstractEventLoop
    outcome: asyncio.Future[bool]

    def set(self, answer: bool | TidemillError) -> None:
        """Answer whoever waits, in their loop."""
        if self.outcome.done():
            return
        if isinstance(answer, bool):
            self.outcome.set_result(answer)
        else:
            # NB: an error of its own for each: raised again, one grows by the frames of all who had
            # it before.
            self.outcome.set_exception(type(answer)(answer.message, **answer.details))


class SqliteConsensus:
    """Guarantees of Consensus; a version is on disk (WAL, synchronous=FULL) when it is
    acknowledged.

    All statements run on one thread of their own, so that the event loop never waits for the disk.
    Writes that wait at the same time share one transaction, hence one flush: so do all that one
    turn of a loop asks for. A damaged key refuses its own writes alone.
    """

    risks: tuple[str, ...] = ()
    """Nothing acknowledged may be lost."""

    def __init__(
        self, file: Path, *, busy_timeout_s: float = BUSY_TIMEOUT_S, read_only: bool = False
    ) -> None:
        """With `read_only` the file must be there, and nothing of it is changed, not even put
        right.
        """
        if not read_only:
            file.parent.mkdir(parents=True, exist_ok=True)
        self._file = file
        self._read_only = read_only
        self._busy_timeout_s = busy_timeout_s
        self._thread = ThreadPoolExecutor(1, "consensus")
        self._connection: sqlite3.Connection | None = None
        self._told: int | None = None
        self._waiting: deque[_Waiting] = deque()
        self._asking: set[asyncio.AbstractEventLoop] = set()
        """The loops that hand their attempts over at the end of their turn."""
        self._uncopied = 0
        self._long = False
        self._closed = False
        self._taking = threading.Lock()
        """Held while work is taken, so that all that was taken before the end is done before it."""

    async def head(self, key: str) -> Version | None:
        """The newest version, None if there is none."""
        found = await self._read(lambda opened: versions_from(opened, key, None, self._file))
        return found[0] if found else None

    async def heads(self, keys: Sequence[str]) -> Sequence[Version | None]:
        """The newest version of each key; None too for a key that is damaged."""

        def newest(opened: sqlite3.Connection) -> Sequence[Version | None]:
            return [self._head(opened, key) for key in keys]

        return await self._read(newest)

    def _head(self, opened: sqlite3.Connection, key: str) -> Version | None:
        try:
            found = versions_from(opened, key, None, self._file)
        except Corrupt:
            return None
        return found[0] if found else None

    async def scan(self, key: str, start: int) -> Sequence[Version]:
        """The versions from number `start` on, in order."""
        return await self._read(lambda opened: versions_from(opened, key, start, self._file))

    async def compare_and_set(self, key: str, expected: Expected, version: Version) -> bool:
        """Append `version` iff the newest one is `expected`.

        Attempts that wait together share a commit.
        """
        return await self.compare_and_set_all((Attempt(key, expected, version),))

    async def compare_and_set_all(self, attempts: Sequence[Attempt]) -> bool:
        """Append the versions of all attempts, or of none."""
        loop = asyncio.get_running_loop()
        waiting = _Waiting(attempts, loop, loop.create_future())
        with self._taking:
            if self._closed:
                raise self._gone()
            self._waiting.append(waiting)
            if loop not in self._asking:
                self._asking.add(loop)
                loop.call_soon(self._hand_over, loop)
        return await waiting.outcome

    def _hand_over(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have all attempts decided that wait now; whoever closed the store has done so."""
        with self._taking:
            self._asking.discard(loop)
            if not self._closed:
                # It answers by itself: nobody waits for the task of the thread, which would wake
                # the loop once more.
                self._thread.submit(self._write_waiting)

    async def truncate(self, key: str, before: int) -> None:
        """Delete the versions before number `before`; the newest one stays."""

        def deleted(connection: sqlite3.Connection) -> None:
            connection.execute(
                "delete from versions where key = ? and number < min(?, "
                "(select max(number) from versions where key = ?))",
                (key, before, key),
            )

        await self._read(deleted)

    async def keys(self) -> Sequence[str]:
        """The keys that have a version."""
        return await self._read(lambda opened: all_keys(opened, self._file))

    async def close(self) -> None:
        """Close the file once running commits have ended."""
        with self._taking:
            if self._closed:
                return
            self._closed = True
            self._thread.submit(self._write_waiting)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, self._close_connection)
        self._thread.shutdown()

    def _submit(self, work: Callable[[], T]) -> asyncio.Future[T]:
        with self._taking:
            if self._closed:
                raise self._gone()
            return asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _gone(self) -> Unavailable:
        return Unavailable(f"the state file {self._file} is closed")

    async def _read(self, statement: Callable[[sqlite3.Connection], T]) -> T:
        def translated() -> T:
            try:
                return statement(self._opened())
            except FAILURES as error:
                raise as_ours(error, self._file) from error

        return await self._submit(translated)

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = open_file(
                self._file, self._busy_timeout_s, read_only=self._read_only
            )
        return self._connection

    def _close_connection(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
            self._long = False
        if self._told is not None:
            os.close(self._told)
            self._told = None

    def _write_waiting(self) -> None:
        """Decide all attempts that wait, in one transaction."""
        waiting = self._take()
        if not waiting:
            return
        try:
            answers = self._decide(waiting)
        except Exception as error:  # whatever it is, nobody may wait for ever
            answers = [as_ours(error, self._file)] * len(waiting)
        self._answer(list(zip(waiting, answers, strict=True)))
        if self._uncopied >= CHECKPOINT_BYTES and self._connection is not None:
            self._uncopied = 0
            copy_log(self._connection)

    def _take(self) -> list[_Waiting]:
        """The attempts that wait; those of loops that have ended are dropped, as nobody waits."""
        with self._taking:
            waiting = [each for each in self._waiting if not each.loop.is_closed()]
            self._waiting.clear()
            self._asking = {loop for loop in self._asking if not loop.is_closed()}
        return waiting

    def _answer(self, answers: Sequence[tuple[_Waiting, bool | TidemillError]]) -> None:
        """Answer whoever waits, waking each loop once."""

        def set_all(loop: asyncio.AbstractEventLoop) -> None:
            for waiting, answer in answers:
                if waiting.loop is loop:
                    waiting.set(answer)

        for loop in {waiting.loop for waiting, _ in answers}:
            with suppress(RuntimeError):  # the loop has ended, and nobody waits
                loop.call_soon_threadsafe(set_all, loop)

    def _decide(self, waiting: Sequence[_Waiting]) -> list[bool | TidemillError]:
        connection = self._opened()
        connection.execute("begin immediate")
        try:
            if not self._long:
                self._long = True
                lengthen_log(self._file, CHECKPOINT_BYTES + LAST_COMMIT_BYTES)
            answers = [self._inserted(connection, each.attempts) for each in waiting]
        except BaseException:
            if connection.in_transaction:
                connection.execute("rollback")
            raise
        won = [each for each, answer in zip(waiting, answers, strict=True) if answer is True]
        try:
            connection.execute("commit" if won else "rollback")
        except sqlite3.Error as error:
            self._close_connection()
            raise Indeterminate(
                f"the state file {self._file} may have the version: {error}"
            ) from error
        if won:
            self._tell(won[0].attempts[0])
        return answers

    def _inserted(
        self, connection: sqlite3.Connection, attempts: Sequence[Attempt]
    ) -> bool | TidemillError:
        """Whether all versions were appended, or why nobody can know: a key is damaged."""
        try:
            for attempt in attempts:
                if not is_newest(connection, attempt.key, attempt.expected, self._file):
                    return False
        except Corrupt as error:
            return error
        for attempt in attempts:
            insert(connection, attempt.key, attempt.version)
            self._uncopied += log_bytes(attempt.version)
        return True

    def _tell(self, attempt: Attempt) -> None:
        """Leave a witness of what is about to be acknowledged; without one less damage is
        noticed.
        """
        with suppress(OSError):
            if self._told is None:
                self._told = os.open(told_file(self._file), os.O_WRONLY | os.O_CREAT, 0o644)
            tell(self._told, attempt.key, attempt.version.number)
