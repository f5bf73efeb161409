"""Consensus in one SQLite file: many processes on one machine."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tidemill.shard.ports import Version
from tidemill.time import Corrupt, Indeterminate, TidemillError, Unavailable

T = TypeVar("T")

BUSY_TIMEOUT_S = 30.0
CHECKPOINT_PAGES = 4_000
"""The log is copied into the file when it has so many pages of 4 KiB: rarely, since one commit waits."""

_SCHEMA = """
create table if not exists versions (
  key text not null, number integer not null, data blob not null, primary key (key, number)
)
"""
_KEYS = """
with recursive found(key) as (
  select min(key) from versions
  union all
  select (select min(key) from versions where key > found.key) from found where found.key is not null
)
select key from found where key is not null order by key
"""


@dataclass(frozen=True, slots=True)
class _Attempt:
    """One compare-and-set that waits for its transaction, and who waits for its outcome."""

    key: str
    expected: int | None
    version: Version
    loop: asyncio.AbstractEventLoop
    outcome: asyncio.Future[bool]

    def tell(self, answer: bool | TidemillError) -> None:
        """Answer whoever waits, from the thread of the store."""

        def set_outcome() -> None:
            if self.outcome.done():
                return
            if isinstance(answer, bool):
                self.outcome.set_result(answer)
            else:
                self.outcome.set_exception(answer)

        with suppress(RuntimeError):  # the loop has ended, and nobody waits
            self.loop.call_soon_threadsafe(set_outcome)


class SqliteConsensus:
    """Guarantees of Consensus; a version is on disk (WAL, synchronous=FULL) when it is acknowledged.

    All statements run on one thread of their own, so that the event loop never waits for the disk.
    Writes that wait at the same time share one transaction, hence one flush.
    """

    risks: tuple[str, ...] = ()
    """Nothing acknowledged may be lost."""

    def __init__(self, file: Path, *, busy_timeout_s: float = BUSY_TIMEOUT_S) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self._file = file
        self._busy_timeout_s = busy_timeout_s
        self._thread = ThreadPoolExecutor(1, "consensus")
        self._connection: sqlite3.Connection | None = None
        self._attempts: deque[_Attempt] = deque()
        self._closed = False

    async def head(self, key: str) -> Version | None:
        def newest(connection: sqlite3.Connection) -> Version | None:
            row = connection.execute(
                "select number, data from versions where key = ? order by number desc limit 1",
                (key,),
            ).fetchone()
            return Version(*row) if row else None

        return await self._read(newest)

    async def scan(self, key: str, start: int) -> Sequence[Version]:
        def selected(connection: sqlite3.Connection) -> Sequence[Version]:
            rows = connection.execute(
                "select number, data from versions where key = ? and number >= ? order by number",
                (key, start),
            ).fetchall()
            return [Version(*row) for row in rows]

        return await self._read(selected)

    async def compare_and_set(self, key: str, expected: int | None, version: Version) -> bool:
        loop = asyncio.get_running_loop()
        attempt = _Attempt(key, expected, version, loop, loop.create_future())
        self._attempts.append(attempt)
        self._submit(self._write_waiting)
        return await attempt.outcome

    async def truncate(self, key: str, before: int) -> None:
        def deleted(connection: sqlite3.Connection) -> None:
            connection.execute(
                "delete from versions where key = ? and number < min(?, "
                "(select max(number) from versions where key = ?))",
                (key, before, key),
            )

        await self._read(deleted)

    async def keys(self) -> Sequence[str]:
        def distinct(connection: sqlite3.Connection) -> Sequence[str]:
            return [row[0] for row in connection.execute(_KEYS)]

        return await self._read(distinct)

    async def close(self) -> None:
        if self._closed:
            return
        closing = self._submit(self._close_connection)
        self._closed = True
        await closing
        self._thread.shutdown()

    def _submit(self, work: Callable[[], T]) -> asyncio.Future[T]:
        if self._closed:
            raise Unavailable(f"the state file {self._file} is closed")
        return asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def _read(self, statement: Callable[[sqlite3.Connection], T]) -> T:
        def translated() -> T:
            try:
                return statement(self._opened())
            except sqlite3.Error as error:
                raise self._translated(error) from error

        return await self._submit(translated)

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            connection = sqlite3.connect(
                self._file, timeout=self._busy_timeout_s, isolation_level=None
            )
            try:
                connection.execute("pragma journal_mode=wal")
                connection.execute("pragma synchronous=full")
                connection.execute(f"pragma wal_autocheckpoint={CHECKPOINT_PAGES}")
                connection.execute(_SCHEMA)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _close_connection(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _translated(self, error: sqlite3.Error) -> TidemillError:
        message = f"the state file {self._file}: {error}"
        if isinstance(error, sqlite3.OperationalError):
            return Unavailable(message)
        return Corrupt(message, object=str(self._file))

    def _write_waiting(self) -> None:
        """Decide all attempts that wait, in one transaction."""
        attempts = []
        while self._attempts:
            attempts.append(self._attempts.popleft())
        if not attempts:
            return
        try:
            answers: list[bool] | TidemillError = self._decide(attempts)
        except sqlite3.Error as error:
            answers = self._translated(error)
        except TidemillError as error:
            answers = error
        for number, attempt in enumerate(attempts):
            attempt.tell(answers[number] if isinstance(answers, list) else answers)

    def _decide(self, attempts: Sequence[_Attempt]) -> list[bool]:
        connection = self._opened()
        connection.execute("begin immediate")
        try:
            won = [_inserted(connection, attempt) for attempt in attempts]
        except BaseException:
            if connection.in_transaction:
                connection.execute("rollback")
            raise
        try:
            connection.execute("commit" if any(won) else "rollback")
        except sqlite3.Error as error:
            self._close_connection()
            raise Indeterminate(
                f"the state file {self._file} may have the version: {error}"
            ) from error
        return won


def _inserted(connection: sqlite3.Connection, attempt: _Attempt) -> bool:
    row = connection.execute(
        "select max(number) from versions where key = ?", (attempt.key,)
    ).fetchone()
    if row[0] != attempt.expected:
        return False
    connection.execute(
        "insert into versions values (?, ?, ?)",
        (attempt.key, attempt.version.number, attempt.version.data),
    )
    return True
