"""A table of an SQLite database as a sink: effect, key and fence in one transaction."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from tidemill.errors import Fenced, Unavailable
from tidemill.runtime.places import ANY_SINK, Files
from tidemill_compute.actions.outbox import Firing, Took, untold

T = TypeVar("T")
BUSY_S = 5.0

_FENCES = """
CREATE TABLE IF NOT EXISTS tidemill_fences (action TEXT PRIMARY KEY, epoch INTEGER NOT NULL)
"""
_TABLE = """
CREATE TABLE IF NOT EXISTS "{table}" (
  key TEXT PRIMARY KEY, action TEXT NOT NULL, instant INTEGER NOT NULL, record TEXT NOT NULL,
  arguments TEXT NOT NULL, event_time INTEGER, fence INTEGER NOT NULL)
"""


class SqliteSink:
    """One row for each key; durable when `fire` returns. Delivery: transactional.

    Each start takes a higher fence, kept in the database itself: a process that was paused and
    replaced is refused, whatever it believes of itself. `table` is a plain name.
    """

    at_most_once = False

    def __init__(self, path: Path, table: str, action: str, files: Files = ANY_SINK) -> None:
        self._files = files
        self._path = path
        self._table = table
        self._action = action
        self._epoch = 0

    async def recover(self, doubtful: Sequence[Firing]) -> frozenset[str]:
        """Take the next fence; of what is in doubt, what is in the table."""
        return await asyncio.to_thread(self._in_transaction, lambda db: self._take(db, doubtful))

    async def fire(self, firings: Sequence[Firing], took: Took = untold) -> None:
        """Raises: Fenced if another process has started since; Unavailable."""
        if firings:
            await asyncio.to_thread(self._in_transaction, lambda db: self._insert(db, firings))
            took(firings)

    async def close(self) -> None:
        """Nothing is held open between two calls."""

    def _take(self, db: sqlite3.Connection, doubtful: Sequence[Firing]) -> frozenset[str]:
        db.execute(_FENCES)
        db.execute(_TABLE.format(table=self._table))
        self._epoch = self._fence(db) + 1
        db.execute(
            "INSERT INTO tidemill_fences VALUES (?, ?) "
            "ON CONFLICT (action) DO UPDATE SET epoch = excluded.epoch",
            (self._action, self._epoch),
        )
        found = f'SELECT key FROM "{self._table}" WHERE key = ?'
        return frozenset(f.key for f in doubtful if db.execute(found, (f.key,)).fetchone())

    def _insert(self, db: sqlite3.Connection, firings: Sequence[Firing]) -> None:
        newest = self._fence(db)
        if newest != self._epoch:
            raise Fenced(
                f"sink {self._path} refused: fence {self._epoch} is not the newest, {newest}"
            )
        db.executemany(
            f'INSERT OR IGNORE INTO "{self._table}" VALUES (?, ?, ?, ?, ?, ?, ?)',
            [
                (f.key, f.action, f.instant, f.record, f.arguments, f.event_time, self._epoch)
                for f in firings
            ],
        )

    def _fence(self, db: sqlite3.Connection) -> int:
        row = db.execute(
            "SELECT epoch FROM tidemill_fences WHERE action = ?", (self._action,)
        ).fetchone()
        return 0 if row is None else int(row[0])

    def _in_transaction(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            # SQLite opens by name, and names its journal after it: looked at just before.
            os.close(self._files.write(self._path, os.O_RDWR))
            with closing(sqlite3.connect(self._path, timeout=BUSY_S, isolation_level=None)) as db:
                db.execute("BEGIN IMMEDIATE")
                try:
                    result = work(db)
                except BaseException:
                    db.execute("ROLLBACK")
                    raise
                db.execute("COMMIT")
                return result
        except (sqlite3.Error, OSError) as error:
            raise Unavailable(
                f"sink {self._path} refused: {error}", path=str(self._path)
            ) from error
