"""The SQLite file of a log, sealed against damage that SQLite does not notice.

SQLite does not notice a wrong byte in a page, or a log of its own that lost its end. So every
version is sealed with its place, and the newest number of a key stands in two places. The last
acknowledged number stands beside the file.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import sqlite3
import struct
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tidemill.errors import Corrupt, TidemillError, Unavailable
from tidemill.shard.ports import Expected, Seen, Version

CHECKPOINT_BYTES = 1536 * 1024
"""So much is written to the log of SQLite before it is copied into the file, between two commits.

The log then begins anew in the same place. That is soon on purpose: a flush of what is written over
is about half of one that makes the log longer. Less than one small commit in a hundred comes just
then.
"""
LAST_COMMIT_BYTES = 256 * 1024
"""Room for the commit after which the log is copied."""
CHECKPOINT_PAGES_MAX = 4_000
"""Pages of 4 KiB after which a commit waits for a checkpoint that was disturbed again and again."""

_SCHEMA = """
create table if not exists versions (
  key text not null, number integer not null, data blob not null, seal integer, primary key (key, number)
);
create table if not exists heads (key text not null primary key, number integer not null) without rowid
"""
_SELECT = """
select heads.newest, heads.last, versions.number, versions.seal, versions.data
from (
  select (select number from heads where key = :key) as newest,
         (select max(number) from versions where key = :key) as last
) as heads
left join versions on versions.key = :key and versions.number {which}
order by versions.number
"""
_FROM = _SELECT.format(which=">= :start")
_LAST = _SELECT.format(which="= heads.last")
_KEYS = """
with recursive found(key) as (
  select min(key) from versions
  union all
  select (select min(key) from versions where key > found.key) from found where found.key is not null
)
select key, 1 from found where key is not null union all select key, 0 from heads order by key
"""
_TEMPORARY = {
    sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_PROTOCOL,
}  # fmt: skip
"""Results of SQLite after which a retry may succeed; all others mean damage."""

_OPEN_LOCK = 128
"""The byte of the shared memory on which each open connection has a lock (UNIX_SHM_DMS of SQLite).
"""

REFUSALS_MAX = 100
"""So often may others be in the way while the log is turned on; each time one of them goes on."""

_DAMAGE = (sqlite3.Error, UnicodeDecodeError)
"""Errors of reading a damaged file; names in their messages may be no text any more."""

FAILURES = (*_DAMAGE, OSError)
"""Errors of a file that is damaged, or that cannot be read or written now."""


def open_file(file: Path, busy_timeout_s: float, *, read_only: bool = False) -> sqlite3.Connection:
    """A connection to the file, made ready unless it is only read.

    Raises: Corrupt if what was told last is not in it.
    """
    address = f"{file.resolve().as_uri()}?mode={'ro' if read_only else 'rwc'}"
    connection = sqlite3.connect(address, timeout=busy_timeout_s, isolation_level=None, uri=True)
    try:
        if not read_only:
            keep_log(connection)
            connection.execute("pragma synchronous=full")
            connection.execute(f"pragma wal_autocheckpoint={CHECKPOINT_PAGES_MAX}")
            _make_ready(connection)
        told = _told(file)
        if told is not None and _behind(newest_number(connection, told[0], file), told[1]):
            raise Corrupt(
                f"the state file {file} does not have version {told[1]} of {told[0]}, which was "
                f"acknowledged: it was cut off or put back; remove {told_file(file)} to accept that",
                object=str(file),
            )
    except BaseException:
        connection.close()
        raise
    return connection


def in_use(file: Path) -> bool:
    """Whether another process has the file open, by the lock that SQLite keeps in its shared
    memory.
    """
    try:
        with file.with_name(file.name + "-shm").open("rb") as shared:
            asked = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, _OPEN_LOCK, 1, 0)
            found = fcntl.fcntl(shared, fcntl.F_GETLK, asked)
    except FileNotFoundError:
        return False
    return bool(struct.unpack("hhqqi", found)[0] != fcntl.F_UNLCK)


def copy_file(file: Path, folder: Path) -> Path:
    """A copy of a file that nobody has open, with its log and what was told: SQLite rights
    neither.
    """
    for part in (file, file.with_name(file.name + "-wal"), told_file(file)):
        if part.exists():
            shutil.copyfile(part, folder / part.name)
    return folder / file.name


def keep_log(connection: sqlite3.Connection) -> None:
    """Turn on the log of SQLite (WAL).

    SQLite refuses some of several openers of a new file without waiting, since each of them may
    have read it already. A refused opener waits for the lock as for a commit, and asks again.
    """
    for _ in range(REFUSALS_MAX):
        try:
            connection.execute("pragma journal_mode=wal")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                raise
            connection.execute("begin immediate")
            connection.execute("rollback")
        else:
            return
    connection.execute("pragma journal_mode=wal")


def _make_ready(connection: sqlite3.Connection) -> None:
    """Make the tables; a file from before there were seals and heads gets its heads."""
    if "seal" in _columns(connection, "versions") and _columns(connection, "heads"):
        return
    connection.execute("begin immediate")
    try:
        found = _columns(connection, "versions")  # another process may have been faster
        if found and "seal" not in found:
            connection.execute("alter table versions add column seal integer")
        for statement in _SCHEMA.split(";"):
            connection.execute(statement)
        connection.execute(
            "insert or ignore into heads select key, max(number) from versions group by key"
        )
        connection.execute("commit")
    except BaseException:
        if connection.in_transaction:
            connection.execute("rollback")
        raise


def _columns(connection: sqlite3.Connection, table: str) -> set[str]:
    return {row[1] for row in connection.execute(f"pragma table_info({table})")}


def newest_number(connection: sqlite3.Connection, key: str, file: Path) -> int | None:
    """The newest number of a key, None if it has no version. Raises: Corrupt."""
    newest, last = connection.execute(
        "select (select number from heads where key = :key), "
        "(select max(number) from versions where key = :key)",
        {"key": key},
    ).fetchone()
    _agree(newest, last, key, file)
    return None if last is None else int(last)


def is_newest(connection: sqlite3.Connection, key: str, expected: Expected, file: Path) -> bool:
    """Whether the newest version of a key is the expected one. Raises: Corrupt."""
    number = newest_number(connection, key, file)
    if not isinstance(expected, Seen) or number != expected.number:
        return number == expected
    try:
        (data,) = connection.execute(
            "select data from versions where key = ? and number = ?", (key, number)
        ).fetchone()
    except _DAMAGE as error:  # of this key alone: writes of others go on
        raise as_ours(error, file) from error
    return Seen.of(_unsealed(key, number, None, data, file)) == expected


def versions_from(
    connection: sqlite3.Connection, key: str, start: int | None, file: Path
) -> Sequence[Version]:
    """The versions from `start` on, or the newest alone, ascending. Raises: Corrupt."""
    rows = connection.execute(
        _LAST if start is None else _FROM, {"key": key, "start": start}
    ).fetchall()
    newest, last = rows[0][:2]
    _agree(newest, last, key, file)
    if newest is not None and (start is None or start <= newest):
        _agree(newest, rows[-1][2], key, file)
    return [
        _unsealed(key, number, seal, data, file)
        for _, _, number, seal, data in rows
        if number is not None
    ]


def all_keys(connection: sqlite3.Connection, file: Path) -> Sequence[str]:
    """The keys that have a version, ascending. Raises: Corrupt."""
    rows = connection.execute(_KEYS).fetchall()
    keys = sorted({key for key, there in rows if there})
    if keys != sorted(key for key, there in rows if not there):
        raise Corrupt(f"the state file {file} has lost a key", object=str(file))
    return keys


def insert(connection: sqlite3.Connection, key: str, version: Version) -> None:
    """Append a version, sealed."""
    seal = _seal(key, version.number, version.data)
    connection.execute(
        "insert into versions (key, number, data, seal) values (?, ?, ?, ?)",
        (key, version.number, version.data, seal),
    )
    connection.execute(
        "insert into heads values (?, ?) on conflict (key) do update set number = excluded.number",
        (key, version.number),
    )


def log_bytes(version: Version) -> int:
    """Estimated growth of SQLite's log by a version: its pages, and those of index and heads."""
    return 4096 * (3 + len(version.data) // 4096)


def lengthen_log(file: Path, wanted: int) -> None:
    """Extend the log of SQLite to its final length, so that the first commits overwrite as well.

    IMPORTANT: call it only with the lock for writing, before the first page of a commit. Recovery
    ends at the first frame without the salt of the log's header, so zeros have no effect. SQLite
    removes the log with the last connection: the first writer pays one flush. Without room on the
    disk the log grows with its commits.
    """
    with suppress(OSError):
        descriptor = os.open(file.with_name(file.name + "-wal"), os.O_RDWR)
        try:
            length = os.fstat(descriptor).st_size
            missing = wanted - length
            if missing <= 0:
                return
            try:
                written = os.pwrite(descriptor, bytes(missing), length)
                if written < missing:
                    raise OSError(errno.ENOSPC, "no room")
                os.fsync(descriptor)
            except OSError:
                os.ftruncate(descriptor, length)
        finally:
            os.close(descriptor)


def copy_log(connection: sqlite3.Connection) -> None:
    """Copy the log of SQLite into the file as far as nobody is disturbed; what fails is done
    another time.
    """
    with suppress(sqlite3.Error):
        connection.execute("pragma wal_checkpoint(passive)").fetchall()


def as_ours(error: Exception, file: Path) -> TidemillError:
    """An error before the end of a transaction, as what the caller does next.

    An error that is neither SQLite's nor damage is Unavailable.
    """
    if isinstance(error, TidemillError):
        return error
    message = f"the state file {file}: {error if isinstance(error, FAILURES) else repr(error)}"
    code = getattr(error, "sqlite_errorcode", None) or sqlite3.SQLITE_ERROR
    passes = isinstance(error, sqlite3.OperationalError) and code & 0xFF in _TEMPORARY
    if isinstance(error, _DAMAGE) and not passes:
        return Corrupt(message, object=str(file))
    return Unavailable(message)


def _seal(key: str, number: int, data: bytes) -> int:
    return zlib.crc32(data, zlib.crc32(f"{number} {key}".encode()))


def _unsealed(key: str, number: object, seal: object, data: object, file: Path) -> Version:
    # Versions from before there were seals have none.
    good = isinstance(number, int) and isinstance(data, bytes)
    if good and seal is not None and seal != _seal(key, int(str(number)), bytes(data)):  # type: ignore[call-overload]  # checked above
        good = False
    if not good:
        raise Corrupt(
            f"version {number} of {key} in {file} does not have the bytes that were written",
            object=str(file),
        )
    assert isinstance(number, int)
    assert isinstance(data, bytes)
    return Version(number, data)


def _agree(newest: object, last: object, key: str, file: Path) -> None:
    if newest != last:
        raise Corrupt(
            f"the newest version of {key} in {file} is {last} in one place, {newest} in another",
            object=str(file),
        )


_RECORD = struct.Struct("<IQI")


def told_file(file: Path) -> Path:
    """The file of the last acknowledged number.

    It is not flushed, so at most as new as the log's file, unless that lost its end.
    """
    return file.with_name(file.name + "-told")


def tell(descriptor: int, key: str, number: int) -> None:
    """A version is on disk and about to be acknowledged."""
    name = key.encode()
    body = struct.pack("<QI", number, len(name)) + name
    os.pwrite(descriptor, struct.pack("<I", zlib.crc32(body)) + body, 0)


def _told(file: Path) -> tuple[str, int] | None:
    """The key and version number in the witness file; None without a file, or for a broken
    record.
    """
    try:
        record = told_file(file).read_bytes()
    except FileNotFoundError:
        return None
    if len(record) < _RECORD.size:
        return None
    checksum, number, length = _RECORD.unpack_from(record)
    body = record[4 : _RECORD.size + length]
    return (body[12:].decode(), number) if zlib.crc32(body) == checksum else None


def _behind(number: int | None, told: int) -> bool:
    return number is None or number < told
