"""Consensus in one SQLite file: many processes on one machine."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from tidemill.shard.ports import Version
from tidemill.time import Corrupt, Unavailable

T = TypeVar("T")

_SCHEMA = """
create table if not exists versions (
  key text not null, number integer not null, data blob not null, primary key (key, number)
) without rowid
"""


class SqliteConsensus:
    """Guarantees of Consensus; a version is on disk (WAL, synchronous=FULL) when it is acknowledged.

    All statements run on one thread of their own, so that the event loop never waits for the disk.
    """

    def __init__(self, file: Path, *, busy_timeout_s: float = 30.0) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self._file = file
        self._busy_timeout_s = busy_timeout_s
        self._thread = ThreadPoolExecutor(1, "consensus")
        self._connection: sqlite3.Connection | None = None

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            connection = sqlite3.connect(
                self._file, timeout=self._busy_timeout_s, isolation_level=None
            )
            connection.execute("pragma journal_mode=wal")
            connection.execute("pragma synchronous=full")
            connection.execute(_SCHEMA)
            self._connection = connection
        return self._connection

    async def _run(self, statement: Callable[[sqlite3.Connection], T]) -> T:
        def translated() -> T:
            try:
                return statement(self._open())
            except sqlite3.OperationalError as error:
                raise Unavailable(f"the state file {self._file}: {error}") from error
            except sqlite3.DatabaseError as error:
                raise Corrupt(f"the state file {self._file}: {error}") from error

        return await asyncio.get_running_loop().run_in_executor(self._thread, translated)

    async def head(self, key: str) -> Version | None:
        def newest(connection: sqlite3.Connection) -> Version | None:
            row = connection.execute(
                "select number, data from versions where key = ? order by number desc limit 1",
                (key,),
            ).fetchone()
            return Version(*row) if row else None

        return await self._run(newest)

    async def scan(self, key: str, start: int) -> Sequence[Version]:
        def selected(connection: sqlite3.Connection) -> Sequence[Version]:
            rows = connection.execute(
                "select number, data from versions where key = ? and number >= ? order by number",
                (key, start),
            ).fetchall()
            return [Version(*row) for row in rows]

        return await self._run(selected)

    async def compare_and_set(self, key: str, expected: int | None, version: Version) -> bool:
        def inserted(connection: sqlite3.Connection) -> bool:
            connection.execute("begin immediate")
            try:
                row = connection.execute(
                    "select max(number) from versions where key = ?", (key,)
                ).fetchone()
                won: bool = row[0] == expected
                if won:
                    connection.execute(
                        "insert into versions values (?, ?, ?)", (key, version.number, version.data)
                    )
                connection.execute("commit" if won else "rollback")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("rollback")
                raise
            return won

        return await self._run(inserted)

    async def truncate(self, key: str, before: int) -> None:
        def deleted(connection: sqlite3.Connection) -> None:
            connection.execute(
                "delete from versions where key = ? and number < ? and number < "
                "(select max(number) from versions where key = ?)",
                (key, before, key),
            )

        await self._run(deleted)

    async def keys(self) -> Sequence[str]:
        def distinct(connection: sqlite3.Connection) -> Sequence[str]:
            rows = connection.execute("select distinct key from versions order by key").fetchall()
            return [row[0] for row in rows]

        return await self._run(distinct)

    async def close(self) -> None:
        def closed() -> None:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

        await asyncio.get_running_loop().run_in_executor(self._thread, closed)
        self._thread.shutdown()
